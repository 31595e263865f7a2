"""Render what was measured at the points as a curve and two tables of docs/faults.md. This module measures nothing."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from benchmarks import figures
from benchmarks.faults import page
from benchmarks.faults.cluster import PLACES, Place
from benchmarks.faults.points import INTERVALS, MODES_AND_TABLES, Outcome, Struck, Training
from benchmarks.report import row
from benchmarks.results import measured_on

PICTURE = page.DOCUMENT.with_name("goodput.svg")
LONGER = (1200, 3600)
"""Intervals in seconds that are not measured."""
COLOURS: dict[Training, str] = dict(zip(MODES_AND_TABLES, ("#4477aa", "#ee6677", "#228833", "#aa7700"), strict=True))


def sentence(outcome: Outcome) -> str:
    """What was measured at a point: goodput 93.0 %, and what the rest of the time went into."""
    seconds = outcome.seconds
    rest = sorted(((name, value) for name, value in asdict(seconds).items() if name != "training"), key=lambda e: -e[1])
    shown = ", ".join(f"{name} {value / seconds.total:.1%}" for name, value in rest if value / seconds.total >= 0.0005)
    problems = "".join(f"\n  PROBLEM: {problem}" for problem in outcome.problems)
    return f"goodput {seconds.goodput:.1%}; {shown}; {again(outcome):.1%} of the steps were taken again{problems}"


def again(outcome: Outcome) -> float:
    """The steps that were taken again, as a share of those that count."""
    return sum(each.lost for each in outcome.struck) / max(1, outcome.steps)


def extrapolated(outcome: Outcome, interval: float) -> float:
    """The goodput with a fault each so many seconds, which cost as much each as at this point."""
    seconds = outcome.seconds
    saving = seconds.saving / seconds.total
    cost = (seconds.total - seconds.training - seconds.saving) / len(outcome.struck)
    return 1 - saving - cost / interval


def publish(outcomes: Sequence[Outcome]) -> None:
    """Write the curve and the tables into the document."""
    if not outcomes:
        return
    if _curves(outcomes):
        draw(outcomes)
    page.write("goodput", render(outcomes))


def render(outcomes: Sequence[Outcome]) -> str:
    """The tables as Markdown."""
    machines = sorted({measured_on(outcome.machine) for outcome in outcomes})
    parts = [f"{' '.join(machines)} Points with * are extrapolated from the longest interval that was measured."]
    parts.append(f"![goodput by the time between two faults]({PICTURE.name})")
    head = ["place", "mode", *map(_duration, [*INTERVALS, *LONGER]), "the rest of the time at the shortest interval"]
    lines = [row(head), row(["---"] * len(head))]
    lines += [_goodput_row(place, mode, found) for (place, mode), found in _curves(outcomes).items()]
    parts.append("\n".join(lines))
    head = [
        "place",
        "mode",
        "fault",
        "hits",
        "times",
        "longest pause",
        "back after",
        "steps taken again",
        "seconds lost",
    ]
    lines = [row(head), row(["---"] * len(head))]
    lines += [row([*name, *_cost(found)]) for name, found in _by_kind(outcomes).items()]
    parts.append("\n".join(lines))
    parts += [f"**Problem** at {each.point.name}: {problem}" for each in outcomes for problem in each.problems]
    return "\n\n".join(parts)


def _curves(outcomes: Iterable[Outcome]) -> dict[tuple[Place, Training], dict[int, Outcome]]:
    """By place and mode: what was measured at each interval, in their order."""
    usual = [each for each in outcomes if not each.point.is_rare]
    known = {(each.point.place, each.point.mode, each.point.interval): each for each in usual}
    found: dict[tuple[Place, Training], dict[int, Outcome]] = {}
    for place in PLACES:
        for mode in MODES_AND_TABLES:
            own = {each: known[place, mode, each] for each in INTERVALS if (place, mode, each) in known}
            if own:
                found[place, mode] = own
    return found


def _goodput_row(place: Place, mode: Training, found: Mapping[int, Outcome]) -> str:
    cells: list[str] = []
    longest = found[max(found)]
    for interval in [*INTERVALS, *LONGER]:
        measured = found.get(interval)
        guess = f"{extrapolated(longest, interval):.1%}*" if interval > max(found) else "–"
        cells.append(f"{measured.seconds.goodput:.1%}" if measured else guess)
    return row([place, mode, *cells, sentence(found[min(found)]).splitlines()[0].partition("; ")[2]])


def _by_kind(outcomes: Iterable[Outcome]) -> dict[tuple[str, ...], list[Struck]]:
    found: dict[tuple[str, ...], list[Struck]] = {}
    for outcome in outcomes:
        for each in outcome.struck:
            found.setdefault((outcome.point.place, outcome.point.mode, each.fault, each.hits), []).append(each)
    return found


def _cost(struck: Sequence[Struck]) -> list[str]:
    backs = [each.back for each in struck if each.back is not None]
    return [
        str(len(struck)),
        f"{statistics.median(each.pause for each in struck):.1f} s",
        f"{statistics.median(backs):.1f} s" if backs else "–",
        f"{statistics.median(each.lost for each in struck):.0f}",
        f"{statistics.median(each.seconds for each in struck):.1f} "
        f"({min(each.seconds for each in struck):.1f}–{max(each.seconds for each in struck):.1f})",
    ]


def _duration(seconds: int) -> str:
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min"


def draw(outcomes: Sequence[Outcome]) -> None:
    """Plot the goodput by the interval as an SVG file: measured as a line, extrapolated as a dashed one."""
    pyplot = figures.pyplot()
    curves = _curves(outcomes)
    places = list(dict.fromkeys(place for place, _ in curves))
    figure, axes = pyplot.subplots(1, len(places), figsize=(4.6 * len(places), 3), sharey=True, squeeze=False)
    for axis, place in zip(axes[0], places, strict=True):
        for mode, colour in COLOURS.items():
            found = curves.get((place, mode))
            if not found:
                continue
            longest = max(found)
            measured = [(interval, outcome.seconds.goodput) for interval, outcome in found.items()]
            more = [each for each in LONGER if each > longest]
            guessed = [measured[-1], *((each, extrapolated(found[longest], each)) for each in more)]
            axis.plot(*zip(*measured, strict=True), color=colour, marker="o", label=mode)
            axis.plot(*zip(*guessed, strict=True), color=colour, linestyle="--", marker="o", markerfacecolor="white")
        ticks = [*INTERVALS, *LONGER]
        axis.set(title=place, xlabel="time between two faults", xscale="log", ylim=(None, 1))
        axis.set_xticks(ticks, [_duration(each) for each in ticks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("goodput")
    axes[0][0].legend()
    figures.save(figure, PICTURE)
