"""Which works are measured, by which programs, how often: the sections of the report.

Rates vary one thing at a time around the middle: 1 parameter server, 2 workers, batch 100, 100 hidden units; all
combinations would take a night. Programs that are compared run by turns, so that a drift of the machine meets all.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import programs
from benchmarks.programs import Data
from benchmarks.work import Mode, Outcome, Work

RATES, STRATEGIES, LEARNING, ACCURACY, LONG, BUSY = "rates", "strategies", "learning", "accuracy", "long", "busy"
SECTIONS = (RATES, STRATEGIES, LEARNING, ACCURACY, LONG, BUSY)
MODES: tuple[Mode, ...] = ("asynchronous", "synchronous")
VARIATIONS: tuple[dict[str, Any], ...] = (
    {"workers": 1},
    {"workers": 4},
    {"ps": 2},
    {"batch_size": 50},
    {"batch_size": 200},
    {"hidden_units": 500},
)
LOCAL_STEPS_FLAG = "--local_steps=8"
LOCAL_STEPS, ALLREDUCE = "trainer, local steps 8", "trainer, all-reduce"
EXAMPLES_TO_LEARN = 200_000
"""Of the sections on learning and accuracy: as many for every program and mode."""
SINGLE = "single process"
CLASSIC_RATE = "0.01"
"""The classic program's own learning rate, beside the trainer's default, which all programs are given."""
QUIET_MACHINE, BUSY_MACHINE = "trainer, quiet machine", "trainer, busy machine"
"""Of the section on busy machines, beside a single process on a quiet one."""


@dataclass(frozen=True)
class Extent:
    """How much is measured."""

    pairs: int
    """Turns of the middle work, of which the bar is."""
    other_pairs: int
    """Turns of the variations, and of the strategies."""
    steps: int
    """Global steps of a run; a third of them in synchronous training, which is slower."""
    seeds: int
    accuracy_seeds: int
    """Of the section on accuracy: more, as one run's scatters by half a point, and the bar is half a point."""
    long_steps: int
    """Global steps of a long run; half of them in synchronous training, where two workers learn as many examples."""
    long_seeds: int
    busy_steps: int
    busy_seeds: int


SHORT = Extent(
    pairs=1,
    other_pairs=1,
    steps=300,
    seeds=1,
    accuracy_seeds=2,
    long_steps=300,
    long_seeds=1,
    busy_steps=300,
    busy_seeds=2,
)

Program = Callable[[Data], Outcome]
Planned = tuple[str, Work, Program]
"""A program's name, its work, and the program to run."""


def plan(extent: Extent, reference: Path, sections: Sequence[str]) -> Iterator[tuple[str, int, Planned]]:
    """All runs in their order, each with its section and its turn, or seed."""
    if RATES in sections:
        for mode in MODES:
            yield from _turns(RATES, _rates(middle(mode, extent.steps), reference), extent.pairs)
        for variation, mode in itertools.product(VARIATIONS, MODES):
            work = replace(middle(mode, extent.steps), **variation)
            yield from _turns(RATES, _rates(work, reference), extent.other_pairs)
    if STRATEGIES in sections:
        yield from _turns(STRATEGIES, _strategies(extent.steps), extent.other_pairs)
    if LEARNING in sections:
        for seed in range(extent.seeds):
            yield from ((LEARNING, seed, each) for each in _learning(seed, reference))
    if ACCURACY in sections:
        for seed in range(extent.accuracy_seeds):
            yield from ((ACCURACY, seed, each) for each in _accuracy(seed, reference))
    if LONG in sections:
        for seed in range(extent.long_seeds):
            yield from ((LONG, seed, each) for each in _long(seed, extent.long_steps))
    if BUSY in sections:
        for seed in range(extent.busy_seeds):
            yield from ((BUSY, seed, each) for each in _busy(seed, extent.busy_steps))


def middle(mode: Mode, steps: int) -> Work:
    """The work around which all others vary."""
    return Work(mode, steps=steps if mode == "asynchronous" else _whole_rounds(steps // 3))


def _whole_rounds(steps: int) -> int:
    """About so many steps, in whole rounds of 8 local steps."""
    return max(104, steps // 8 * 8)


def _turns(section: str, planned: Sequence[Planned], times: int) -> Iterator[tuple[str, int, Planned]]:
    for turn in range(times):
        yield from ((section, turn, each) for each in planned)


def _rates(work: Work, reference: Path) -> list[Planned]:
    return [
        ("classic", work, partial(programs.run_classic, reference, work)),
        ("trainer", work, partial(programs.run_trainer, work)),
        ("no communication", work, partial(programs.run_independent, work)),
    ]


def _strategies(steps: int) -> list[Planned]:
    asynchronous, synchronous = (middle(mode, steps) for mode in MODES)
    return [
        ("trainer", asynchronous, partial(programs.run_trainer, asynchronous)),
        *_forms("ParameterServerStrategy", programs.run_parameter_server_strategy, asynchronous),
        ("trainer", synchronous, partial(programs.run_trainer, synchronous)),
        (LOCAL_STEPS, synchronous, partial(programs.run_trainer, synchronous, flags=[LOCAL_STEPS_FLAG])),
        (ALLREDUCE, synchronous, partial(programs.run_allreduce, synchronous)),
        *_forms("MultiWorkerMirroredStrategy", programs.run_multi_worker_mirrored, synchronous),
    ]


def _learning(seed: int, reference: Path) -> list[Planned]:
    works = _works_to_learn()
    planned = _single(works, seed)
    for work in works:
        planned.append(("classic", work, partial(programs.run_classic, reference, work, learn=True)))
        planned.append(("trainer", work, partial(programs.run_trainer, work, seed=seed, learn=True)))
    averaging = partial(programs.run_trainer, works[1], flags=[LOCAL_STEPS_FLAG], seed=seed, learn=True)
    planned.append((LOCAL_STEPS, works[1], averaging))
    planned.append((ALLREDUCE, works[1], partial(programs.run_allreduce, works[1], seed=seed)))
    pss = partial(programs.run_parameter_server_strategy, seed=seed)
    mirrored = partial(programs.run_multi_worker_mirrored, seed=seed)
    planned += _forms("ParameterServerStrategy", pss, works[0])
    planned += _forms("MultiWorkerMirroredStrategy", mirrored, works[1])
    return planned


def _accuracy(seed: int, reference: Path) -> list[Planned]:
    works = _works_to_learn()
    planned = _single(works, seed)
    for work in works:
        planned.append(("classic", work, partial(programs.run_classic, reference, work, learn=True)))
        planned.append(("trainer", work, partial(programs.run_trainer, work, seed=seed)))
    work, name, flags = works[0], f"rate {CLASSIC_RATE}", [f"--learning_rate={CLASSIC_RATE}"]
    planned.append((f"{SINGLE}, {name}", work, partial(programs.run_single, work, seed=seed, flags=flags)))
    planned.append((f"trainer, {name}", work, partial(programs.run_trainer, work, seed=seed, flags=flags)))
    return planned


def _long(seed: int, steps: int) -> list[Planned]:
    asynchronous = Work("asynchronous", steps=steps)
    four = replace(asynchronous, workers=4)
    synchronous = Work("synchronous", steps=_whole_rounds(steps // 2))
    averaging = partial(programs.run_trainer, synchronous, flags=[LOCAL_STEPS_FLAG], seed=seed)
    return [
        (SINGLE, asynchronous, partial(programs.run_single, asynchronous, seed=seed)),
        ("trainer", asynchronous, partial(programs.run_trainer, asynchronous, seed=seed)),
        ("trainer, 4 workers", four, partial(programs.run_trainer, four, seed=seed)),
        ("trainer", synchronous, partial(programs.run_trainer, synchronous, seed=seed)),
        (LOCAL_STEPS, synchronous, averaging),
        (ALLREDUCE, synchronous, partial(programs.run_allreduce, synchronous, seed=seed)),
    ]


def _busy(seed: int, steps: int) -> list[Planned]:
    work = Work("asynchronous", steps=steps)
    run = partial(programs.run_trainer, work, seed=seed)
    return [
        (SINGLE, work, partial(programs.run_single, work, seed=seed)),
        (QUIET_MACHINE, work, run),
        (BUSY_MACHINE, work, partial(programs.run_beside_busy_loops, run)),
    ]


def _works_to_learn() -> list[Work]:
    """Asynchronous and synchronous work of the same number of examples."""
    works = [Work(mode) for mode in MODES]
    return [replace(work, steps=EXAMPLES_TO_LEARN // (work.batch_size * work.batches_per_step)) for work in works]


def _single(works: Sequence[Work], seed: int) -> list[Planned]:
    """The same examples in one process: by steps of one batch, and by those of a synchronous step's batches."""
    asynchronous, synchronous = works
    size = synchronous.batch_size * synchronous.batches_per_step
    same_batch = replace(asynchronous, batch_size=size, steps=synchronous.steps)
    return [
        (SINGLE, asynchronous, partial(programs.run_single, asynchronous, seed=seed)),
        (f"{SINGLE}, batch {size}", same_batch, partial(programs.run_single, same_batch, seed=seed)),
    ]


def _forms(name: str, run: Callable[..., Outcome], work: Work) -> list[Planned]:
    """A strategy in its plain form and in its best."""
    return [(f"{name}, {form}", work, partial(run, best, work)) for form, best in (("plain", False), ("best", True))]
