"""The report on a file of results: Markdown tables and a plot. It measures nothing."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.plan import ACCURACY, BUSY, LEARNING, LONG, MODES, RATES, SINGLE, STRATEGIES
from benchmarks.work import Mode, Run, Work

BARS: dict[Mode, float] = {"asynchronous": 2.8, "synchronous": 3.2}
"""The least ratios to the classic code with 1 parameter server and 2 workers."""
POINTS = 0.5
"""The most that training on a cluster may lose of a single process's accuracy, in percent of the examples."""
BUSY_MEAN, BUSY_WORST = 0.3, 1.5
"""The most points that the mean and the worst run may be below the single process's mean, quiet and busy."""
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
"""Between these two comments the report stands in the document."""
SHARE_OF_FINAL = 0.97
"""Of the single process's final accuracy: who has reached this has learnt most of what there is to learn."""


def insert(document: Path, report: str) -> None:
    """Put the report between the two comments of the document."""
    before, begin, rest = document.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{document} lacks the comments {BEGIN} and {END}")
    document.write_text(f"{before}{begin}\n\n{report.strip()}\n\n{end}{after}")


def render(machine: dict[str, str | int], runs: Sequence[Run]) -> str:
    """The report in Markdown; sections of which nothing was measured are left out."""
    parts = [
        f"Measured on {machine['cores']} cores of {machine['cpu']}, TensorFlow {machine['tensorflow']}, Python "
        f"{machine['python']}; medians, with the least and the most in brackets. All rates are of global steps.",
        *(part(of(runs, section)) for section, part in _PARTS if of(runs, section)),
        memory(runs),
    ]
    return "\n\n".join(part for part in parts if part)


def of(runs: Iterable[Run], section: str) -> list[Run]:
    """The runs of a section."""
    return [run for run in runs if run.section == section]


def pairs(runs: Sequence[Run], work: Work, one: str, other: str) -> list[tuple[float, float]]:
    """The rates of two programs on a work, turn by turn; a turn that one of them did not finish is left out."""
    rates = [
        {run.turn: run.outcome.rate for run in runs if (run.work, run.program) == (work, each)} for each in (one, other)
    ]
    return [(rates[0][turn], rates[1][turn]) for turn in rates[0] if turn in rates[1]]


def rates(runs: Sequence[Run]) -> str:
    """The bar, and a row for each work and way of training."""
    lines = [_bar(runs, mode) for mode in MODES]
    lines += [
        "| mode | ps | workers | batch | hidden | turns | classic, steps/s | trainer, steps/s | times the classic | of no communication |",  # noqa: E501
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for work in _works(runs):
        compared = pairs(runs, work, "classic", "trainer")
        if not compared:
            continue
        limits = pairs(runs, work, "no communication", "trainer")
        shares = [work.batches_per_step * ours / limit for limit, ours in limits]
        cells: list[object] = [work.mode, work.ps, work.workers, work.batch_size, work.hidden_units, len(compared)]
        cells += [spread([classic for classic, _ in compared]), spread([ours for _, ours in compared])]
        cells += [spread([ours / classic for classic, ours in compared], "{:.2f}")]
        cells += [spread(shares, "{:.0%}") if shares else "–"]
        lines.append(row(cells))
    return "\n".join(lines)


def _bar(runs: Sequence[Run], mode: Mode) -> str:
    """The line on which it is seen whether the bar is reached."""
    works = [work for work in _works(runs) if work == Work(mode, steps=work.steps)]
    ratios = [ours / classic for work in works for classic, ours in pairs(runs, work, "classic", "trainer")]
    if not ratios:
        return f"**Bar, {mode}: not measured.**\n"
    reached = "reached" if statistics.median(ratios) >= BARS[mode] else "NOT reached"
    return (
        f"**Bar, {mode}, 1 ps, 2 workers: {spread(ratios, '{:.2f}')} times the classic code, of {len(ratios)} pairs; "
        f"at least {BARS[mode]} is wanted: {reached}.**\n"
    )


def strategies(runs: Sequence[Run]) -> str:
    """The strategies of `tf.distribute` beside the trainer on the middle work."""
    lines = [
        "| mode | program | turns | steps/s | trainer is so many times as fast |",
        "| --- | --- | --- | --- | --- |",
    ]
    for mode in MODES:
        names = list(dict.fromkeys(run.program for run in runs if run.work.mode == mode))
        for name in names:
            works = [work for work in _works(runs) if work.mode == mode]
            compared = [pair for work in works for pair in pairs(runs, work, name, "trainer")]
            if compared:
                ratios = [ours / theirs for theirs, ours in compared]
                cells = [mode, name, len(compared), spread([theirs for theirs, _ in compared])]
                lines.append(row([*cells, "" if name == "trainer" else spread(ratios, "{:.2f}")]))
    return "\n".join(lines)


def learning(runs: Sequence[Run]) -> str:
    """What programs learn, and how soon."""
    single = [run.outcome.accuracy for run in runs if run.program == SINGLE and run.outcome.accuracy]
    if not single:
        return ""
    wanted = SHARE_OF_FINAL * statistics.median(single)
    examples = runs[0].work.steps * runs[0].work.batches_per_step * runs[0].work.batch_size
    lines = [
        f"After {examples:,} examples, by runs with different seeds; {wanted:.2%} is {SHARE_OF_FINAL:.0%} of what the "
        "single process reaches. A synchronous step takes the batches of both workers, so the single process with the "
        "larger batch is the one that takes as many steps for these examples.",
        "",
        f"| mode | program | runs | final test accuracy | steps to {wanted:.2%} | seconds from the first step "
        "| seconds from the start of the processes |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for mode, name in dict.fromkeys((run.work.mode, run.program) for run in runs):
        mine = [run.outcome for run in runs if (run.work.mode, run.program) == (mode, name)]
        reached = [first for outcome in mine if (first := _first(outcome.curve, wanted))]
        final = [outcome.accuracy for outcome in mine if outcome.accuracy is not None]
        cells = ["" if name.startswith(SINGLE) else mode, name, len(mine)]
        cells += [spread(final, "{:.2%}") if final else "–"]
        cells += [spread([step for _, step, _ in reached]) if reached else "–"]
        cells += [spread([seconds for seconds, _, _ in reached], "{:.2f}") if reached else "–"]
        whole = [
            outcome.first_step + first[0]
            for outcome in mine
            if (first := _first(outcome.curve, wanted)) and outcome.first_step is not None
        ]
        cells += [spread(whole, "{:.1f}") if whole else "–"]
        lines.append(row(cells))
    return "\n".join(lines)


def _first(curve: Sequence[tuple[float, int, float]], wanted: float) -> tuple[float, int, float] | None:
    """Where a curve first reaches this accuracy."""
    return next((point for point in curve if point[2] >= wanted), None)


def accuracy(runs: Sequence[Run]) -> str:
    """What is lost by training on a cluster, in the mean over many seeds, each mean with its standard error."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for run in runs:
        if run.outcome.accuracy is not None:
            key = ("" if run.program.startswith(SINGLE) else run.work.mode, run.program)
            found.setdefault(key, {})[run.turn] = 100 * run.outcome.accuracy
    singles = [name for mode, name in found if not mode]
    verdicts, rows = [], []
    for (mode, name), values in found.items():
        cells = [mode, name, len(values), "{:.2f}% ± {:.2f}".format(*mean_and_error(list(values.values())))]
        for single in singles:
            others = found["", single]
            differences = [values[seed] - others[seed] for seed in values if seed in others]
            cells.append("{:+.2f} ± {:.2f}".format(*mean_and_error(differences)) if mode and differences else "")
            if name == "trainer" and differences and single == SINGLE:
                reached = "reached" if statistics.mean(differences) >= -POINTS else "NOT reached"
                verdicts.append(
                    f"**Bar, {mode}, accuracy: {cells[-1]} points of the single process's after the same examples, in "
                    f"the mean of {len(differences)} seeds; at most {POINTS} less are wanted: {reached}.**\n"
                )
        rows.append(row(cells))
    head = ["mode", "program", "seeds", "mean test accuracy", *(f"points more than {single}" for single in singles)]
    return "\n".join([*verdicts, row(head), row(["---"] * len(head)), *rows]) if rows else ""


def long_runs(runs: Sequence[Run]) -> str:
    """What is left at the end of long runs of the best that they had."""
    lines = [
        "Long runs, with different seeds. The best is the largest accuracy of the run's own evaluations on the "
        "held-out split, the end among them.",
        "",
        "| mode | program | steps | runs | test accuracy at the end | best | largest loss from best to end, points |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, work in dict.fromkeys((run.program, run.work) for run in runs):
        mine = [run.outcome for run in runs if (run.program, run.work) == (name, work)]
        ends = [outcome.accuracy for outcome in mine if outcome.accuracy is not None]
        both = [(each.best, each.accuracy) for each in mine if each.best is not None and each.accuracy is not None]
        cells: list[object] = ["" if name.startswith(SINGLE) else work.mode, name, f"{work.steps:,}", len(mine)]
        cells += [spread(ends, "{:.2%}") if ends else "–"]
        cells += [f"{statistics.median(best for best, _ in both):.2%}" if both else "–"]
        cells += [f"{max(100 * (best - end) for best, end in both):.2f}" if both else "–"]
        lines.append(row(cells))
    return "\n".join(lines)


def busy(runs: Sequence[Run]) -> str:
    """Whether a busy machine costs accuracy: mean and worst run below a single process's mean."""
    found: dict[str, list[float]] = {}
    for run in runs:
        if run.outcome.accuracy is not None:
            found.setdefault(run.program, []).append(100 * run.outcome.accuracy)
    if SINGLE not in found:
        return ""
    single = statistics.mean(found[SINGLE])
    verdicts, rows = [], []
    for name, accuracies in found.items():
        mean, worst = (round(value - single, 2) for value in (statistics.mean(accuracies), min(accuracies)))
        average = "{:.2f}% ± {:.2f}".format(*mean_and_error(accuracies))
        rows.append(row([name, len(accuracies), average, f"{mean:+.2f}", f"{worst:+.2f}"]))
        if name != SINGLE:
            reached = "reached" if mean >= -BUSY_MEAN and worst >= -BUSY_WORST else "NOT reached"
            verdicts.append(
                f"**Bar, {name}, accuracy: {mean:+.2f} points of the single process's mean in the mean of "
                f"{len(accuracies)} runs, {worst:+.2f} in the worst; at most {BUSY_MEAN} and {BUSY_WORST} less are "
                f"wanted: {reached}.**\n"
            )
    about = (
        f"Asynchronous runs of {runs[0].work.steps:,} steps on a quiet machine and beside a busy loop for each core; "
        "the single process takes as many steps.\n"
    )
    head = ["program", "runs", "mean test accuracy", "mean, points more than single process", "worst, points more"]
    return "\n".join([*verdicts, about, row(head), row(["---"] * len(head)), *rows])


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error, which nobody knows of one value."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.mean(values), error


def memory(runs: Sequence[Run]) -> str:
    """The largest process of each role, on the middle work."""
    lines = ["| program | mode | peak memory of a process, MiB |", "| --- | --- | --- |"]
    middles = [run for run in _of_rates(runs) if run.work == Work(run.work.mode, steps=run.work.steps)]
    for name, mode in dict.fromkeys((run.program, run.work.mode) for run in middles):
        mine = [run.outcome.memory for run in middles if (run.program, run.work.mode) == (name, mode)]
        roles = dict.fromkeys(role for peaks in mine for role in peaks)
        peaks = [f"{role} {statistics.median(each[role] for each in mine if role in each):.0f}" for role in roles]
        lines.append(row([name, mode, ", ".join(peaks)]))
    return "\n".join(lines) if middles else ""


def spread(values: Sequence[float], form: str = "{:.0f}") -> str:
    """Median, least and most; the one value where there is but one."""
    median, least, most = (form.format(value) for value in (statistics.median(values), min(values), max(values)))
    return median if len(values) == 1 else f"{median} ({least}–{most})"


def row(cells: Sequence[object]) -> str:
    """A table's row."""
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _of_rates(runs: Sequence[Run]) -> list[Run]:
    return of(runs, RATES) + of(runs, STRATEGIES)


def _works(runs: Sequence[Run]) -> list[Work]:
    return list(dict.fromkeys(run.work for run in runs))


def _name(work: Work) -> str:
    """What tells a work from the middle one."""
    normal = Work(work.mode, steps=work.steps)
    names = {"ps": "ps", "workers": "workers", "batch_size": "batch", "hidden_units": "hidden"}
    return (
        ", ".join(
            f"{name} {getattr(work, key)}" for key, name in names.items() if getattr(work, key) != getattr(normal, key)
        )
        or "1 ps, 2 workers,\nbatch 100, hidden 100"
    )


def draw(runs: Sequence[Run], file: Path) -> None:
    """The ratios to the classic code of every work as an SVG, with the bars."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    measured = of(runs, RATES)
    pyplot.rcParams.update({"svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9})
    figure, axes = pyplot.subplots(1, len(MODES), figsize=(9, 3.2), sharey=True)
    for axis, mode in zip(axes, MODES, strict=True):
        works = [work for work in _works(measured) if work.mode == mode]
        ratios = [[ours / classic for classic, ours in pairs(measured, work, "classic", "trainer")] for work in works]
        drawn = [(_name(work), each) for work, each in zip(works, ratios, strict=True) if each]
        medians = [statistics.median(each) for _, each in drawn]
        below = [median - min(each) for median, (_, each) in zip(medians, drawn, strict=True)]
        above = [max(each) - median for median, (_, each) in zip(medians, drawn, strict=True)]
        axis.barh([name for name, _ in drawn], medians, xerr=[below, above], color="#4477aa", ecolor="#222222")
        axis.axvline(BARS[mode], color="#cc3311", linestyle="--")
        axis.set(
            title=f"{mode} (dashed: the first row's bar, {BARS[mode]})",
            xlabel="times the classic steps per second",
            xlim=(0, None),
        )
    axes[0].invert_yaxis()
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


_PARTS: tuple[tuple[str, Callable[[Sequence[Run]], str]], ...] = (
    (RATES, rates),
    (STRATEGIES, strategies),
    (LEARNING, learning),
    (ACCURACY, accuracy),
    (LONG, long_runs),
    (BUSY, busy),
)
