"""Render what a long soak has seen as curves and a table of docs/faults.md. This module measures nothing."""

from collections.abc import Sequence

from benchmarks import figures
from benchmarks.faults import page
from benchmarks.faults.resources import Held
from benchmarks.results import describe_machine, measured_on

PICTURE = page.DOCUMENT.with_name("soak.svg")


def publish(held: Sequence[Held], table: str) -> None:
    """Write the curves and the table into the document."""
    if held:
        draw(held)
    picture = f"![what tasks hold over time]({PICTURE.name})"
    page.write("soak", f"{measured_on(describe_machine())}\n\n{picture}\n\n{table}")


def draw(held: Sequence[Held]) -> None:
    """Plot the memory, the open files and the threads of each process over time as an SVG file."""
    pyplot = figures.pyplot()
    figure, axes = pyplot.subplots(1, 3, figsize=(11, 3))
    tasks = sorted({each.task for each in held})
    colours = {task: f"C{number}" for number, task in enumerate(tasks)}
    begun = min(each.time for each in held)
    for axis, (name, title) in zip(
        axes, (("memory", "memory, MiB"), ("files", "open files"), ("threads", "threads")), strict=True
    ):
        for task, process in sorted({(each.task, each.process) for each in held}):
            mine = [each for each in held if (each.task, each.process) == (task, process)]
            hours = [(each.time - begun) / 3600 for each in mine]
            axis.plot(hours, [getattr(each, name) for each in mine], color=colours[task], linewidth=1)
        axis.set(title=title, xlabel="hours", ylim=(0, None))
        axis.grid(alpha=0.3)
    for task in tasks:
        axes[0].plot([], [], color=colours[task], label=task)
    axes[0].legend(fontsize=7)
    figures.save(figure, PICTURE)
