"""Render results as Markdown tables and a plot. This module measures nothing."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks import figures
from benchmarks.plan import ACCURACY, BFLOAT16, BUSY, LARGE, LEARNING, LONG, MODELS, MODES, RATES, SINGLE, STRATEGIES
from benchmarks.results import measured_on
from benchmarks.workload import Mode, Run, Workload

TARGETS: dict[Mode, float] = {"asynchronous": 2.8, "synchronous": 3.2}
"""Minimum ratios to the classic code on the baseline workload."""
LARGE_TARGETS: dict[Mode, float] = {"asynchronous": 4.0, "synchronous": 3.5}
"""Minimum ratios to the classic code with a large model and bfloat16 on the wire."""
MODEL_TARGETS = {"ParameterServerStrategy, plain": 2.0, "ParameterServerStrategy, best": 1.2}
"""Minimum ratios of the trainer to a strategy with the Keras model."""
MAX_LOSS = 0.5
"""Maximum loss of accuracy on a cluster compared with a single process, in percentage points."""
BUSY_MEAN_MAX_LOSS, BUSY_WORST_MAX_LOSS = 0.3, 1.5
"""Maximum loss of the mean and of the worst run compared with the single process's mean, in percentage points."""
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
"""The report stands between these two comments of the document."""
SHARE_OF_FINAL = 0.97
"""A run has learnt when it reaches this share of the single process's final accuracy."""


def insert(document: Path, report: str, comments: tuple[str, str] = (BEGIN, END)) -> None:
    """Replace the text between the two comments of the document with the report."""
    before, begin, rest = document.read_text().partition(comments[0])
    _, end, after = rest.partition(comments[1])
    if not end:
        raise ValueError(f"{document} lacks the comments {comments[0]} and {comments[1]}")
    document.write_text(f"{before}{begin}\n\n{report.strip()}\n\n{end}{after}")


def render(machine: dict[str, str | int], runs: Sequence[Run]) -> str:
    """Render the report as Markdown, without sections that have no runs."""
    parts = [
        f"{measured_on(machine)} Values are medians (minimum–maximum). Rates are in global steps.",
        *(part(of(runs, section)) for section, part in _PARTS if of(runs, section)),
        memory(runs),
    ]
    return "\n\n".join(part for part in parts if part)


def of(runs: Iterable[Run], section: str) -> list[Run]:
    """The runs of a section."""
    return [run for run in runs if run.section == section]


def pairs(runs: Sequence[Run], workload: Workload, one: str, other: str) -> list[tuple[float, float]]:
    """The rates of two programs on a workload by round, without rounds that one of them did not finish."""
    rates = [
        {run.round: run.outcome.rate for run in runs if (run.workload, run.program) == (workload, each)}
        for each in (one, other)
    ]
    return [(rates[0][number], rates[1][number]) for number in rates[0] if number in rates[1]]


def rates(runs: Sequence[Run]) -> str:
    """Render the targets, and a row for each workload."""
    lines = [_target(runs, mode) for mode in MODES]
    lines += [
        "| mode | ps | workers | batch | hidden | rounds | classic, steps/s | trainer, steps/s | times the classic | of no communication |",  # noqa: E501
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for workload in _workloads(runs):
        compared = pairs(runs, workload, "classic", "trainer")
        if not compared:
            continue
        limits = pairs(runs, workload, "no communication", "trainer")
        shares = [workload.batches_per_step * ours / limit for limit, ours in limits]
        cells: list[object] = [
            workload.mode,
            workload.ps,
            workload.workers,
            workload.batch_size,
            workload.hidden_units,
            len(compared),
        ]
        cells += [spread([classic for classic, _ in compared]), spread([ours for _, ours in compared])]
        cells += [spread([ours / classic for classic, ours in compared], "{:.2f}")]
        cells += [spread(shares, "{:.0%}") if shares else "–"]
        lines.append(row(cells))
    return "\n".join(lines)


def _target(runs: Sequence[Run], mode: Mode) -> str:
    """Render the line that compares a mode's ratio with its target."""
    workloads = [workload for workload in _workloads(runs) if workload == Workload(mode, steps=workload.steps)]
    ratios = [ours / classic for workload in workloads for classic, ours in pairs(runs, workload, "classic", "trainer")]
    if not ratios:
        return f"**Target, {mode}: not measured.**\n"
    verdict = _verdict(statistics.median(ratios) >= TARGETS[mode])
    return (
        f"**Target, {mode}, 1 ps, 2 workers: {spread(ratios, '{:.2f}')} times the classic code in {len(ratios)} "
        f"rounds; at least {TARGETS[mode]}: {verdict}.**\n"
    )


def _verdict(reached: bool) -> str:
    return "reached" if reached else "missed"


def large(runs: Sequence[Run]) -> str:
    """Render the rates of a large model: its targets, and a row for each mode and program."""
    verdicts, rows = [], []
    for workload in _workloads(runs):
        for name in dict.fromkeys(run.program for run in runs if run.workload == workload):
            compared = pairs(runs, workload, "classic", name)
            ratios = [ours / classic for classic, ours in compared]
            cells = [workload.mode, workload.hidden_units, name, len(compared), spread([ours for _, ours in compared])]
            rows.append(row([*cells, spread(ratios, "{:.2f}")]))
            if name == BFLOAT16 and ratios:
                target, measured = LARGE_TARGETS[workload.mode], spread(ratios, "{:.2f}")
                verdict = _verdict(statistics.median(ratios) >= target)
                verdicts.append(
                    f"**Target, {workload.mode}, {workload.hidden_units} hidden units: {measured} times the classic "
                    f"code in {len(ratios)} rounds; at least {target}: {verdict}.**\n"
                )
    head = ["mode", "hidden", "program", "rounds", "steps/s", "times the classic"]
    return "\n".join([*verdicts, row(head), row(["---"] * len(head)), *rows])


def strategies(runs: Sequence[Run]) -> str:
    """Compare `tf.distribute` strategies with the trainer on the baseline workload."""
    lines = [
        "| mode | program | rounds | steps/s | trainer, times as fast |",
        "| --- | --- | --- | --- | --- |",
    ]
    for mode in MODES:
        names = list(dict.fromkeys(run.program for run in runs if run.workload.mode == mode))
        for name in names:
            workloads = [workload for workload in _workloads(runs) if workload.mode == mode]
            compared = [pair for workload in workloads for pair in pairs(runs, workload, name, "trainer")]
            if compared:
                ratios = [ours / theirs for theirs, ours in compared]
                cells = [mode, name, len(compared), spread([theirs for theirs, _ in compared])]
                lines.append(row([*cells, "" if name == "trainer" else spread(ratios, "{:.2f}")]))
    return "\n".join(lines)


def models(runs: Sequence[Run]) -> str:
    """Compare `tf.distribute` strategies with the trainer on a Keras model."""
    verdicts, rows = [], []
    for workload in _workloads(runs):
        for name in dict.fromkeys(run.program for run in runs):
            compared = pairs(runs, workload, name, "trainer")
            if not compared:
                continue
            ratios = [ours / theirs for theirs, ours in compared]
            cells = [workload.mode, name, len(compared), spread([theirs for theirs, _ in compared])]
            rows.append(row([*cells, "" if name == "trainer" else spread(ratios, "{:.2f}")]))
            if target := MODEL_TARGETS.get(name):
                verdict = _verdict(statistics.median(ratios) >= target)
                verdicts.append(
                    f"**Target, a Keras model, {workload.mode}: {spread(ratios, '{:.2f}')} times {name} in "
                    f"{len(ratios)} rounds; at least {target}: {verdict}.**\n"
                )
    head = ["mode", "program", "rounds", "steps/s", "trainer, times as fast"]
    return "\n".join([*verdicts, row(head), row(["---"] * len(head)), *rows])


def learning(runs: Sequence[Run]) -> str:
    """Render what programs learn, and how soon."""
    single = [run.outcome.accuracy for run in runs if run.program == SINGLE and run.outcome.accuracy]
    if not single:
        return ""
    target = SHARE_OF_FINAL * statistics.median(single)
    examples = runs[0].workload.steps * runs[0].workload.batches_per_step * runs[0].workload.batch_size
    lines = [
        f"Each run takes {examples:,} examples; runs differ in the seed. {target:.2%} is {SHARE_OF_FINAL:.0%} of the "
        "single process's accuracy. A synchronous step takes a batch of each worker, so the single process with the "
        "larger batch takes as many steps as a synchronous run.",
        "",
        f"| mode | program | runs | final test accuracy | steps to {target:.2%} | seconds from the first step "
        "| seconds from the start of the processes |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for mode, name in dict.fromkeys((run.workload.mode, run.program) for run in runs):
        mine = [run.outcome for run in runs if (run.workload.mode, run.program) == (mode, name)]
        reached = [first for outcome in mine if (first := _first(outcome.curve, target))]
        final = [outcome.accuracy for outcome in mine if outcome.accuracy is not None]
        cells = ["" if name.startswith(SINGLE) else mode, name, len(mine)]
        cells += [spread(final, "{:.2%}") if final else "–"]
        cells += [spread([step for _, step, _ in reached]) if reached else "–"]
        cells += [spread([seconds for seconds, _, _ in reached], "{:.2f}") if reached else "–"]
        whole = [
            outcome.first_step + first[0]
            for outcome in mine
            if (first := _first(outcome.curve, target)) and outcome.first_step is not None
        ]
        cells += [spread(whole, "{:.1f}") if whole else "–"]
        lines.append(row(cells))
    return "\n".join(lines)


def _first(curve: Sequence[tuple[float, int, float]], target: float) -> tuple[float, int, float] | None:
    """The first point of a curve with this accuracy."""
    return next((point for point in curve if point[2] >= target), None)


def accuracy(runs: Sequence[Run]) -> str:
    """Render the loss of accuracy by training on a cluster: means over seeds, with standard errors."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for run in runs:
        if run.outcome.accuracy is not None:
            key = ("" if run.program.startswith(SINGLE) else run.workload.mode, run.program)
            found.setdefault(key, {})[run.round] = 100 * run.outcome.accuracy
    singles = [name for mode, name in found if not mode]
    verdicts, rows = [], []
    for (mode, name), values in found.items():
        cells = [mode, name, len(values), "{:.2f}% ± {:.2f}".format(*mean_and_error(list(values.values())))]
        for single in singles:
            others = found["", single]
            differences = [values[seed] - others[seed] for seed in values if seed in others]
            cells.append("{:+.2f} ± {:.2f}".format(*mean_and_error(differences)) if mode and differences else "")
            if name == "trainer" and differences and single == SINGLE:
                verdict = _verdict(statistics.mean(differences) >= -MAX_LOSS)
                verdicts.append(
                    f"**Target, {mode}, accuracy: {cells[-1]} points compared with a single process on the same "
                    f"examples, mean of {len(differences)} seeds; at most {MAX_LOSS} less: {verdict}.**\n"
                )
        rows.append(row(cells))
    head = ["mode", "program", "seeds", "mean test accuracy", *(f"points more than {single}" for single in singles)]
    return "\n".join([*verdicts, row(head), row(["---"] * len(head)), *rows]) if rows else ""


def long_runs(runs: Sequence[Run]) -> str:
    """Render what long runs lose between their best and their final accuracy."""
    lines = [
        "Long runs with different seeds. The best is the highest accuracy of the run's evaluations on the held-out "
        "split, the final one included.",
        "",
        "| mode | program | steps | runs | test accuracy at the end | best | largest loss from best to end, points |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, workload in dict.fromkeys((run.program, run.workload) for run in runs):
        mine = [run.outcome for run in runs if (run.program, run.workload) == (name, workload)]
        ends = [outcome.accuracy for outcome in mine if outcome.accuracy is not None]
        both = [(each.best, each.accuracy) for each in mine if each.best is not None and each.accuracy is not None]
        cells: list[object] = ["" if name.startswith(SINGLE) else workload.mode, name, f"{workload.steps:,}", len(mine)]
        cells += [spread(ends, "{:.2%}") if ends else "–"]
        cells += [f"{statistics.median(best for best, _ in both):.2%}" if both else "–"]
        cells += [f"{max(100 * (best - end) for best, end in both):.2f}" if both else "–"]
        lines.append(row(cells))
    return "\n".join(lines)


def busy(runs: Sequence[Run]) -> str:
    """Render whether a busy machine costs accuracy: mean and worst run compared with a single process's mean."""
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
            verdict = _verdict(mean >= -BUSY_MEAN_MAX_LOSS and worst >= -BUSY_WORST_MAX_LOSS)
            verdicts.append(
                f"**Target, {name}, accuracy: {mean:+.2f} points compared with the single process's mean, mean of "
                f"{len(accuracies)} runs; {worst:+.2f} in the worst run; at most {BUSY_MEAN_MAX_LOSS} and "
                f"{BUSY_WORST_MAX_LOSS} less: {verdict}.**\n"
            )
    about = (
        f"Asynchronous runs of {runs[0].workload.steps:,} steps on a quiet machine and beside one busy loop per core. "
        "The single process takes as many steps.\n"
    )
    head = ["program", "runs", "mean test accuracy", "mean, points more than single process", "worst, points more"]
    return "\n".join([*verdicts, about, row(head), row(["---"] * len(head)), *rows])


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error; the error of a single value is NaN."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.mean(values), error


def memory(runs: Sequence[Run]) -> str:
    """Render the memory of the largest process of each role, on the baseline workload."""
    lines = ["| program | mode | peak memory of a process, MiB |", "| --- | --- | --- |"]
    baselines = [
        run for run in _of_rates(runs) if run.workload == Workload(run.workload.mode, steps=run.workload.steps)
    ]
    for name, mode in dict.fromkeys((run.program, run.workload.mode) for run in baselines):
        mine = [run.outcome.memory for run in baselines if (run.program, run.workload.mode) == (name, mode)]
        roles = dict.fromkeys(role for peaks in mine for role in peaks)
        peaks = [f"{role} {statistics.median(each[role] for each in mine if role in each):.0f}" for role in roles]
        lines.append(row([name, mode, ", ".join(peaks)]))
    return "\n".join(lines) if baselines else ""


def spread(values: Sequence[float], form: str = "") -> str:
    """Format as "median (minimum–maximum)", or a single value as itself; without a form with at least two digits."""
    median, least, most = (
        (form or ("{:.0f}" if value >= 10 else "{:.1f}")).format(value)
        for value in (statistics.median(values), min(values), max(values))
    )
    return median if len(values) == 1 else f"{median} ({least}–{most})"


def row(cells: Sequence[object]) -> str:
    """Format a row of a Markdown table."""
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _of_rates(runs: Sequence[Run]) -> list[Run]:
    return of(runs, RATES) + of(runs, STRATEGIES)


def _workloads(runs: Sequence[Run]) -> list[Workload]:
    return list(dict.fromkeys(run.workload for run in runs))


def _name(workload: Workload) -> str:
    """Name the parameters in which a workload differs from the baseline."""
    baseline = Workload(workload.mode, steps=workload.steps)
    names = {"ps": "ps", "workers": "workers", "batch_size": "batch", "hidden_units": "hidden"}
    return (
        ", ".join(
            f"{name} {getattr(workload, key)}"
            for key, name in names.items()
            if getattr(workload, key) != getattr(baseline, key)
        )
        or "1 ps, 2 workers,\nbatch 100, hidden 100"
    )


def draw(runs: Sequence[Run], file: Path) -> None:
    """Plot the ratios to the classic code of every workload and the targets as an SVG file."""
    pyplot = figures.pyplot()
    measured = of(runs, RATES)
    figure, axes = pyplot.subplots(1, len(MODES), figsize=(9, 3.2), sharey=True)
    for axis, mode in zip(axes, MODES, strict=True):
        workloads = [workload for workload in _workloads(measured) if workload.mode == mode]
        ratios = [
            [ours / classic for classic, ours in pairs(measured, workload, "classic", "trainer")]
            for workload in workloads
        ]
        drawn = [(_name(workload), each) for workload, each in zip(workloads, ratios, strict=True) if each]
        medians = [statistics.median(each) for _, each in drawn]
        below = [median - min(each) for median, (_, each) in zip(medians, drawn, strict=True)]
        above = [max(each) - median for median, (_, each) in zip(medians, drawn, strict=True)]
        axis.barh([name for name, _ in drawn], medians, xerr=[below, above], color="#4477aa", ecolor="#222222")
        axis.axvline(TARGETS[mode], color="#cc3311", linestyle="--")
        axis.set(
            title=f"{mode} (dashed: target of the first row, {TARGETS[mode]})",
            xlabel="times the classic steps per second",
            xlim=(0, None),
        )
    axes[0].invert_yaxis()
    figures.save(figure, file)


_PARTS: tuple[tuple[str, Callable[[Sequence[Run]], str]], ...] = (
    (RATES, rates),
    (LARGE, large),
    (STRATEGIES, strategies),
    (MODELS, models),
    (LEARNING, learning),
    (ACCURACY, accuracy),
    (LONG, long_runs),
    (BUSY, busy),
)
