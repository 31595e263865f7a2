"""The benchmark's plan: which programs train which models on which examples, and how often.

All batch sizes are measured with DLRM, which is the only model of the classic program and of PyTorch. Programs run in
interleaved rounds, so that drift of the machine's speed affects all alike.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.recommenders import data, movielens
from benchmarks.recommenders.programs import WITHOUT_ROW_OPS, Outcome
from benchmarks.recommenders.work import Mode, Work

RATES, LEARNING, MOVIELENS, CRITEO, PROFILE = "rates", "learning", "movielens", "criteo", "profile"
SECTIONS = (RATES, LEARNING, MOVIELENS, CRITEO, PROFILE)
BATCHES, BATCH = (512, 2048, 8192), 2048
MODES: tuple[Mode, ...] = ("asynchronous", "synchronous")
MILLION = 2**20
"""The "million" of the tables: 1,048,576 examples."""
DATA_OF = {"two_towers": data.PAIRS, "din": data.HISTORIES}
"""Other models have clicks."""
OTHERS = ("deepfm", "wide_and_deep", "two_towers", "din")
DEEPREC = "dlrm, layers of DeepRec"


@dataclass(frozen=True)
class Planned:
    """A run to do."""

    section: str
    round: int
    program: str
    work: Work

    def __str__(self) -> str:
        work = self.work
        cluster = f"{work.ps} ps {work.workers} workers" if self.program in CLUSTERS else f"{work.workers} processes"
        if self.program == "fit":
            return f"{self.section:9} {work.model}, batch {work.batch_size}, fit"
        return f"{self.section:9} {work.model}, batch {work.batch_size}, {self.program} {work.mode}, {cluster}"


CLUSTERS = ("trainer", WITHOUT_ROW_OPS, "classic", "ParameterServerStrategy")


@dataclass(frozen=True)
class Run:
    """A run and its outcome, as a file of results stores it."""

    planned: Planned
    outcome: Outcome
    best: float | None = None
    """The best AUC of the examples, if it is known."""

    def to_json(self) -> dict[str, Any]:
        """The run as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Run":
        """Inverse of `to_json`."""
        planned = content["planned"]
        outcome = dict(content["outcome"])
        outcome |= {name: [tuple(each) for each in outcome[name]] for name in ("curve", "ops")}
        return cls(Planned(**{**planned, "work": Work(**planned["work"])}), Outcome(**outcome), content["best"])


@dataclass(frozen=True)
class Extent:
    """How much to measure."""

    rounds: int = 3
    other_rounds: int = 2
    """Rounds of all but DLRM's rates."""
    learning: int = 10 * MILLION
    is_short: bool = False
    has_criteo: bool = False
    """Whether the user has given Criteo's file."""

    @property
    def counts(self) -> dict[str, int]:
        """Examples to train on, by name."""
        few = MILLION // 4 if self.is_short else 2 * MILLION
        clicks = self.learning * 11 // 10  # a worker that is ahead of the others would begin its part again
        return {
            data.CLICKS: max(few, clicks),
            data.CLICKS_FREQUENT: max(few, clicks),
            data.HISTORIES: few,
            data.PAIRS: few,
            data.CRITEO: 1000 if self.is_short else 2 * MILLION if self.has_criteo else MILLION // 4,
        }


SHORT = Extent(rounds=1, other_rounds=1, learning=MILLION // 4, is_short=True)


def plan(extent: Extent, sections: Sequence[str]) -> Iterator[Planned]:
    """All runs in order."""
    for number in range(max(extent.rounds, extent.other_rounds)):
        if RATES in sections and number < extent.rounds:
            for size in (BATCH,) if extent.is_short else BATCHES:
                yield from _of_section(RATES, number, _dlrm("dlrm", data.CLICKS, size, extent))
        if RATES in sections and number < extent.other_rounds:
            for model in OTHERS:
                yield from _of_section(RATES, number, _other(model, extent))
        if CRITEO in sections and number < extent.other_rounds:
            yield from _of_section(CRITEO, number, _criteo(extent))
    if LEARNING in sections:
        yield from _of_section(LEARNING, 0, _learning(extent))
    if MOVIELENS in sections:
        yield from _of_section(MOVIELENS, 0, _movielens(extent))
    if PROFILE in sections:
        yield from _of_section(PROFILE, 0, _profile(extent))


def minutes(planned: Sequence[Planned], extent: Extent) -> float:
    """About how long these runs take on two quiet cores."""
    return sum(12 if extent.is_short else _SECONDS[each.section] for each in planned) / 60


_SECONDS = {RATES: 18, CRITEO: 22, LEARNING: 100, MOVIELENS: 40, PROFILE: 20}
"""Of a run."""
Pair = tuple[str, Work]


def _of_section(section: str, number: int, pairs: Sequence[Pair]) -> Iterator[Planned]:
    for program, work in pairs:
        yield Planned(section, number, program, work)


def _steady(work: Work, extent: Extent, share: float = 1.0) -> Work:
    """The work with as many examples as some seconds take."""
    if extent.is_short:
        return replace(work, examples=24 * work.examples_per_step)
    examples = (2 * MILLION if work.batch_size <= 512 else 8 * MILLION) * share
    return replace(work, examples=int(examples if work.mode == "asynchronous" else examples / 2))


def _dlrm(model: str, name: str, size: int, extent: Extent, share: float = 1.0) -> list[Pair]:
    """All programs."""
    works = {(mode, ps): _steady(Work(model, name, size, mode, ps), extent, share) for mode in MODES for ps in (1, 2)}
    asynchronous, synchronous = works["asynchronous", 1], works["synchronous", 1]
    clusters = [synchronous, asynchronous] if extent.is_short else list(works.values())
    return [
        *(("trainer", work) for work in clusters),
        *((WITHOUT_ROW_OPS, work) for work in clusters if work.ps == 1),
        ("classic", asynchronous),
        *(() if extent.is_short else [("classic", synchronous)]),
        ("ParameterServerStrategy", asynchronous),
        ("PyTorch", replace(synchronous, ps=0)),
        ("fit", replace(asynchronous, workers=1, ps=0)),
    ]


def _other(model: str, extent: Extent) -> list[Pair]:
    """The programs that train any Keras model."""
    found = _dlrm(model, DATA_OF.get(model, data.CLICKS), BATCH, extent, share=1 / 4)
    programs = (
        {"trainer", "fit"} if extent.is_short and model != "din" else {"trainer", "fit", "ParameterServerStrategy"}
    )
    kept = [(program, work) for program, work in found if program in programs and work.ps < 2]
    return kept[1:] if extent.is_short else kept


def _learning(extent: Extent) -> list[Pair]:
    """DLRM on both logs, with the same examples for each program; on the second one by the trainer and `fit` alone."""
    every = extent.learning // 4 if extent.is_short else MILLION
    asynchronous, synchronous = (
        Work("dlrm", data.CLICKS, BATCH, mode, examples=extent.learning, every=every) for mode in MODES
    )
    fit = _alone("fit", asynchronous)
    if extent.is_short:
        return [("trainer", asynchronous), ("fit", fit)]
    ours = [("trainer", asynchronous), ("trainer", synchronous), ("fit", fit)]
    others = [("classic", asynchronous), ("classic", synchronous), ("PyTorch", replace(synchronous, ps=0))]
    return [*ours, *others, *((program, replace(work, data=data.CLICKS_FREQUENT)) for program, work in ours)]


def _movielens(extent: Extent) -> list[Pair]:
    """Both tasks by the trainer and by `fit`."""
    found = []
    for model, name in (("two_towers", data.TOWERS), ("factorization", data.RATINGS)):
        epochs = 1 if extent.is_short else movielens.EPOCHS[model]
        examples = epochs * 98_304  # 2**15 * 3, an epoch but for a few examples
        for program in ("trainer", "fit"):
            work = Work(model, name, 256, "synchronous", examples=examples, every=examples, learning_rate=0.1)
            found.append((program, _alone(program, work)))
    return found


def _criteo(extent: Extent) -> list[Pair]:
    """DLRM with DeepRec's layers and batch, and with Criteo's file also what is learnt."""
    found = _dlrm(DEEPREC, data.CRITEO, 512, extent, share=1 / 8)
    if extent.is_short:
        return [(program, replace(work, batch_size=256, examples=24 * 256)) for program, work in found[1:2]]
    if extent.has_criteo:
        count = extent.counts[data.CRITEO]
        found += [(program, replace(work, examples=count, every=count)) for program, work in (found[0], found[-1])]
    return found


def _profile(extent: Extent) -> list[Pair]:
    """The trainer with larger batches; it is stopped after the trace."""
    works = [_steady(Work("dlrm", data.CLICKS, size, mode), Extent()) for size in BATCHES[1:] for mode in MODES]
    return [("trainer", work) for work in (works[:1] if extent.is_short else works)]


def _alone(program: str, work: Work) -> Work:
    return replace(work, workers=1, ps=0, mode="asynchronous") if program == "fit" else work
