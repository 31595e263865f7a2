"""What a fault cost a run, and whether the run did what it must. Pure: a record in, figures and problems out."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.faults.cluster import SUPERVISOR, Line
from benchmarks.faults.faults import Fault
from benchmarks.faults.observation import Record, Sample
from benchmarks.faults.workload import Workload
from trainer.telemetry import report
from trainer.telemetry.progress import parse

SILENT_SECONDS = 15.0
"""A pause of this length must be explained in a log."""
NAMED_SECONDS = 2.0
"""How long before its injection has returned a fault may be named: kubectl takes time to delete a pod."""
NEW_SESSION = re.compile(r"\bat step \d+ of \d+")


@dataclass(frozen=True)
class Cost:
    """What a fault cost."""

    pause: float
    """The longest time after the fault in which no replica logged progress, in seconds. They log it once a second."""
    back: float | None
    """Seconds from the fault to the next step of the lost task, or of all replicas if it takes no steps or is none."""
    back_after_end: float | None
    """The same from the end of a fault that lasts."""
    lost: int
    """Global steps that were taken again, up to the last progress line before the restoration."""
    said: str
    """The first line that names what happened."""
    problems: list[str] = field(default_factory=list)


def cost(seen: Record, workload: Workload, fault: Fault, targets: Sequence[str], began: float, ended: float) -> Cost:
    """Measure a fault of these tasks, or of what they run on, that began and ended at these times since 1970."""
    samples, lines = sorted(seen.samples, key=lambda each: each.time), seen.lines
    hit = targets or workload.replicas
    backs = [_back(samples, lines, workload, fault, target, began, ended) for target in hit]
    known = [back for back in backs if back is not None]
    back = max(known) if known and len(known) == len(backs) else None
    restored = [each for each in seen.restored if each.time > began]
    pause = _pause(samples, began, back)
    said = _said(lines, fault, targets, began)
    problems = _below_saved(samples, restored, seen.saved, fault, began)
    if not said and (fault.replaces or min(pause, fault.seconds) > SILENT_SECONDS):
        problems.append("no log names what happened")
    return Cost(
        pause=pause,
        back=None if back is None else back - began,
        back_after_end=None if back is None or not fault.seconds else back - ended,
        lost=max((_lost(samples, each) for each in restored), default=0),
        said=said,
        problems=problems,
    )


def _back(
    samples: Sequence[Sample],
    lines: Sequence[Line],
    workload: Workload,
    fault: Fault,
    target: str,
    began: float,
    ended: float,
) -> float | None:
    """The time at which a task is back; None if it is never."""
    own = [line for line in lines if line.task == target and line.time > (began if fault.replaces else ended)]
    if fault.replaces:  # a deleted pod logs on for some seconds
        former = {line.container for line in lines if line.task == target and line.time <= began and line.container}
        own = [line for line in own if line.container not in former]
    if target in workload.replicas:
        started = next((line.time for line in own if NEW_SESSION.search(line.text)), None) if fault.replaces else ended
        if started is None:
            return None
        return next((each.time for each in samples if each.task == target and each.time >= started), None)
    if target in workload.servers:
        started = next((line.time for line in own if "serving on" in line.text), None) if fault.replaces else ended
        firsts = [
            next((each.time for each in samples if each.task == replica and started and each.time > started), None)
            for replica in workload.replicas
        ]
        return None if None in firsts else max(first for first in firsts if first is not None)
    if target in workload.tasks and fault.replaces:  # an evaluator; its former process also logs that it ends
        return next((line.time for line in own if "started" in report.split(line.text)[1]), None)
    return own[0].time if own else None


def _pause(samples: Sequence[Sample], began: float, until: float | None) -> float:
    """The longest time between two samples from the fault on."""
    times = [began, *(each.time for each in samples if each.time > began and (until is None or each.time <= until + 1))]
    return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)


def _lost(samples: Sequence[Sample], restored: Sample) -> int:
    reached = max((each.step for each in samples if each.time < restored.time), default=0)
    return max(0, reached - restored.step)


def _below_saved(
    samples: Sequence[Sample], restored: Sequence[Sample], saved: Sequence[Sample], fault: Fault, began: float
) -> list[str]:
    """The problems of a run that has lost a checkpoint."""
    problems = []
    before = sorted(each.step for each in saved if each.time < began)
    whole = before[:-1] if fault.damages else before
    newest = whole[-1] if whole else 0
    lowest = min((each.step for each in samples if each.time > began), default=newest)
    if lowest < newest:
        problems.append(f"step {lowest} follows the checkpoint of step {newest}")
    for each in restored:
        existing = [checkpoint.step for checkpoint in saved if checkpoint.time < each.time - 1]
        if not fault.damages and existing and each.step < max(existing):
            problems.append(f"step {each.step} was restored, but step {max(existing)} was saved")
    return problems


def _said(lines: Sequence[Line], fault: Fault, targets: Sequence[str], began: float) -> str:
    """The first line that names what happened: by another task, or by the supervisor."""
    names = [re.escape(target).replace(r"\-", "[ -]") for target in targets]
    pattern = re.compile(fault.says or "|".join(rf"\b{name}\b" for name in names) or "$^")
    for line in lines:
        own = line.task in targets and line.task != SUPERVISOR and not fault.says
        if line.time <= began - NAMED_SECONDS or own or parse(line.text) or line.text.endswith(" is done"):
            continue
        text = re.sub(rf"^\d\d:\d\d:\d\d {line.task.replace('-', ' ')}: ", "", report.split(line.text)[0])
        if pattern.search(text):
            return f"{line.task}: {text}"
    return ""
