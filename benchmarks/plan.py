"""The benchmark's plan: which programs run which workloads, and how often, in each section of the report.

Section rates varies one parameter at a time from the baseline: 1 parameter server, 2 workers, batch 100, 100 hidden
units. All combinations would take a night. Programs run in interleaved rounds, so that drift of the machine's speed
affects all alike.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import programs
from benchmarks.programs import Data
from benchmarks.workload import Mode, Outcome, Workload

RATES, LARGE, STRATEGIES, LEARNING = "rates", "large", "strategies", "learning"
MODELS, ACCURACY, LONG, BUSY = "models", "accuracy", "long", "busy"
SECTIONS = (RATES, LARGE, STRATEGIES, MODELS, LEARNING, ACCURACY, LONG, BUSY)
MODES: tuple[Mode, ...] = ("asynchronous", "synchronous")
VARIATIONS: tuple[dict[str, Any], ...] = (
    {"workers": 1},
    {"workers": 4},
    {"ps": 2},
    {"batch_size": 50},
    {"batch_size": 200},
)
LARGE_UNITS = 500
"""Hidden units of section large, whose parameters take 1.6 MB."""
LOCAL_STEPS_FLAG = "--local_steps=8"
BFLOAT16, BFLOAT16_FLAG = "trainer, bfloat16 on the wire", "--wire_dtype=bfloat16"
LOCAL_STEPS, ALLREDUCE = "trainer, local steps 8", "trainer, all-reduce"
EXAMPLES_TO_LEARN = 200_000
"""Examples of each run in sections learning and accuracy, the same for every program and mode."""
SINGLE = "single process"
CLASSIC_RATE = "0.01"
"""The classic program's default learning rate. All other runs use the trainer's default."""
QUIET_MACHINE, BUSY_MACHINE = "trainer, quiet machine", "trainer, busy machine"
"""Names in section busy, which also runs a single process on a quiet machine."""


@dataclass(frozen=True)
class Extent:
    """How much to measure."""

    pairs: int
    """Rounds of the baseline workload, which has the target."""
    other_pairs: int
    """Rounds of the variations and of the strategies."""
    steps: int
    """Global steps of a run; synchronous training is slower and takes a third of them."""
    seeds: int
    accuracy_seeds: int
    """Seeds of section accuracy; many, because a run's accuracy varies by as much as the target, half a point."""
    long_steps: int
    """Global steps of a long run; half of them in synchronous training, where a step takes two workers' examples."""
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
Planned = tuple[str, Workload, Program]
"""A program's name, its workload, and the function that runs it."""


def plan(extent: Extent, reference: Path, sections: Sequence[str]) -> Iterator[tuple[str, int, Planned]]:
    """All runs in order, each with its section and its round or seed."""
    if RATES in sections:
        for mode in MODES:
            yield from _rounds(RATES, _rates(baseline(mode, extent.steps), reference), extent.pairs)
        for variation, mode in itertools.product(VARIATIONS, MODES):
            workload = replace(baseline(mode, extent.steps), **variation)
            yield from _rounds(RATES, _rates(workload, reference), extent.other_pairs)
    if LARGE in sections:
        for mode in MODES:
            workload = replace(baseline(mode, extent.steps), hidden_units=LARGE_UNITS)
            yield from _rounds(LARGE, _large(workload, reference), extent.pairs)
    if STRATEGIES in sections:
        yield from _rounds(STRATEGIES, _strategies(extent.steps), extent.other_pairs)
    if MODELS in sections:
        yield from _rounds(MODELS, _models(extent.steps), extent.pairs)
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


def baseline(mode: Mode, steps: int) -> Workload:
    """The workload from which all others vary in one parameter."""
    return Workload(mode, steps=steps if mode == "asynchronous" else _multiple_of_local_steps(steps // 3))


def _multiple_of_local_steps(steps: int) -> int:
    """Round down to a multiple of 8 local steps, at least 104."""
    return max(104, steps // 8 * 8)


def _rounds(section: str, planned: Sequence[Planned], times: int) -> Iterator[tuple[str, int, Planned]]:
    for number in range(times):
        yield from ((section, number, each) for each in planned)


def _rates(workload: Workload, reference: Path) -> list[Planned]:
    return [
        ("classic", workload, partial(programs.run_classic, reference, workload)),
        ("trainer", workload, partial(programs.run_trainer, workload)),
        ("no communication", workload, partial(programs.run_independent, workload)),
    ]


def _large(workload: Workload, reference: Path) -> list[Planned]:
    classic, trainer, limit = _rates(workload, reference)
    compressed = partial(programs.run_trainer, workload, flags=[BFLOAT16_FLAG])
    return [classic, trainer, (BFLOAT16, workload, compressed), limit]


def _strategies(steps: int) -> list[Planned]:
    asynchronous, synchronous = (baseline(mode, steps) for mode in MODES)
    return [
        ("trainer", asynchronous, partial(programs.run_trainer, asynchronous)),
        *_forms("ParameterServerStrategy", programs.run_parameter_server_strategy, asynchronous),
        ("trainer", synchronous, partial(programs.run_trainer, synchronous)),
        (LOCAL_STEPS, synchronous, partial(programs.run_trainer, synchronous, flags=[LOCAL_STEPS_FLAG])),
        (ALLREDUCE, synchronous, partial(programs.run_allreduce, synchronous)),
        *_forms("MultiWorkerMirroredStrategy", programs.run_multi_worker_mirrored, synchronous),
    ]


def _models(steps: int) -> list[Planned]:
    workload = baseline("asynchronous", steps)
    strategy = partial(programs.run_parameter_server_strategy, flags=["--keras"])
    keras = ("trainer", workload, partial(programs.run_keras, workload))
    return [keras, *_forms("ParameterServerStrategy", strategy, workload)]


def _learning(seed: int, reference: Path) -> list[Planned]:
    workloads = _workloads_to_learn()
    planned = _single(workloads, seed)
    for workload in workloads:
        planned.append(("classic", workload, partial(programs.run_classic, reference, workload, sample=True)))
        planned.append(("trainer", workload, partial(programs.run_trainer, workload, seed=seed, sample=True)))
    local_sgd = partial(programs.run_trainer, workloads[1], flags=[LOCAL_STEPS_FLAG], seed=seed, sample=True)
    planned.append((LOCAL_STEPS, workloads[1], local_sgd))
    planned.append((ALLREDUCE, workloads[1], partial(programs.run_allreduce, workloads[1], seed=seed)))
    pss = partial(programs.run_parameter_server_strategy, seed=seed)
    mirrored = partial(programs.run_multi_worker_mirrored, seed=seed)
    planned += _forms("ParameterServerStrategy", pss, workloads[0])
    planned += _forms("MultiWorkerMirroredStrategy", mirrored, workloads[1])
    return planned


def _accuracy(seed: int, reference: Path) -> list[Planned]:
    workloads = _workloads_to_learn()
    planned = _single(workloads, seed)
    for workload in workloads:
        planned.append(("classic", workload, partial(programs.run_classic, reference, workload, sample=True)))
        planned.append(("trainer", workload, partial(programs.run_trainer, workload, seed=seed)))
        compressed = partial(programs.run_trainer, workload, seed=seed, flags=[BFLOAT16_FLAG])
        planned.append((BFLOAT16, workload, compressed))
    workload, name, flags = workloads[0], f"rate {CLASSIC_RATE}", [f"--learning_rate={CLASSIC_RATE}"]
    planned.append((f"{SINGLE}, {name}", workload, partial(programs.run_single, workload, seed=seed, flags=flags)))
    planned.append((f"trainer, {name}", workload, partial(programs.run_trainer, workload, seed=seed, flags=flags)))
    return planned


def _long(seed: int, steps: int) -> list[Planned]:
    asynchronous = Workload("asynchronous", steps=steps)
    four = replace(asynchronous, workers=4)
    synchronous = Workload("synchronous", steps=_multiple_of_local_steps(steps // 2))
    local_sgd = partial(programs.run_trainer, synchronous, flags=[LOCAL_STEPS_FLAG], seed=seed)
    return [
        (SINGLE, asynchronous, partial(programs.run_single, asynchronous, seed=seed)),
        ("trainer", asynchronous, partial(programs.run_trainer, asynchronous, seed=seed)),
        ("trainer, 4 workers", four, partial(programs.run_trainer, four, seed=seed)),
        ("trainer", synchronous, partial(programs.run_trainer, synchronous, seed=seed)),
        (LOCAL_STEPS, synchronous, local_sgd),
        (ALLREDUCE, synchronous, partial(programs.run_allreduce, synchronous, seed=seed)),
    ]


def _busy(seed: int, steps: int) -> list[Planned]:
    workload = Workload("asynchronous", steps=steps)
    run = partial(programs.run_trainer, workload, seed=seed)
    return [
        (SINGLE, workload, partial(programs.run_single, workload, seed=seed)),
        (QUIET_MACHINE, workload, run),
        (BUSY_MACHINE, workload, partial(programs.run_beside_busy_loops, run)),
    ]


def _workloads_to_learn() -> list[Workload]:
    """An asynchronous and a synchronous workload with the same number of examples."""
    workloads = [Workload(mode) for mode in MODES]
    return [
        replace(workload, steps=EXAMPLES_TO_LEARN // (workload.batch_size * workload.batches_per_step))
        for workload in workloads
    ]


def _single(workloads: Sequence[Workload], seed: int) -> list[Planned]:
    """The same examples in one process: with the batch of one worker, and with the batch of a synchronous step."""
    asynchronous, synchronous = workloads
    size = synchronous.batch_size * synchronous.batches_per_step
    same_batch = replace(asynchronous, batch_size=size, steps=synchronous.steps)
    return [
        (SINGLE, asynchronous, partial(programs.run_single, asynchronous, seed=seed)),
        (f"{SINGLE}, batch {size}", same_batch, partial(programs.run_single, same_batch, seed=seed)),
    ]


def _forms(name: str, run: Callable[..., Outcome], workload: Workload) -> list[Planned]:
    """A strategy in its plain form and in its best form."""
    return [
        (f"{name}, {form}", workload, partial(run, best, workload)) for form, best in (("plain", False), ("best", True))
    ]
