"""The page about a run: `trainer report`."""

import dataclasses
import statistics as averages
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import trainer
from trainer.config import Settings
from trainer.data.examples import Array
from trainer.results import charts, statistics
from trainer.results.html import (
    confusion_table,
    facts,
    page,
    picture_list,
    table,
    write_duration,
    write_number,
    write_size,
    write_time,
)
from trainer.results.predictions import Predictions
from trainer.run_directory.run import Run
from trainer.run_directory.task_logs import Event
from trainer.telemetry import goodput
from trainer.telemetry.result import LABELS

MATRIX_CLASSES = 30
"""The most classes of which the matrix is shown."""
PICTURES = 60
"""The most misread examples that are shown."""
ROWS = 50
"""The most rows of a table of faults."""
STATES = {
    "done": "done",
    "running": "running",
    "failed": "failed",
    "stopped": "stopped",
    "silent": "not done, and silent",
}


@dataclass(frozen=True)
class Confusion:
    """What the exported model makes of the held-out split, or why this is not known."""

    predictions: Predictions | None
    classes: Sequence[str]
    """Their names."""
    reason: str = ""


def make(run: Run, confusion: Confusion) -> str:
    """The page, as HTML."""
    name = str(run.directory)
    body = "\n".join(
        [
            _head(run, name, confusion),
            _curves(run),
            _held_out(confusion),
            _speed(run),
            _faults(run),
            _checkpoints(run),
            _settings(run.settings),
            f"<footer>Written {escape(write_time(time.time()))} by trainer report {trainer.__version__}. "
            f"The run last wrote {escape(write_time(run.written))}.</footer>",
        ]
    )
    return page(f"{name}: {STATES[run.state]}", body)


def _head(run: Run, name: str, confusion: Confusion) -> str:
    result, settings = run.result, run.settings
    parts = [f'<header><h1>{escape(name)} <span class="state {run.state}">{STATES[run.state]}</span></h1>']
    for event in run.failures:
        text = f"{event.task} ended with code {event.content.get('code')}: {event.content.get('reason')}"
        parts.append(f'<p class="problem">{escape(text)}</p>')
    if run.state == "silent":
        parts.append(
            f'<p class="problem">The run is not done and has written nothing for '
            f"{escape(write_duration(time.time() - run.written))}: it was killed, or it waits.</p>"
        )
    items: list[tuple[str, str, str]] = []
    last, best, decides = result.get("last") or {}, result.get("best") or {}, f"test_{result.get('best_metric')}"
    for key, value in sorted((last or result).items(), key=lambda item: item[0] != decides):
        if key.startswith("test_") and isinstance(value, (int, float)):
            better = best.get(key)
            note = f"best checkpoint {better:.4f}, step {best['global_step']:,}" if better is not None else ""
            note += ", chosen by this metric" if note and key == decides else ""
            items.append((f"test {key.removeprefix('test_').replace('_', ' ')}", f"{value:.4f}", note))
    if confusion.predictions:
        right = confusion.predictions.right[0]
        low, high = statistics.wilson(int(right.sum()), len(right))
        note = f"95 %: {low:.4f} to {high:.4f}; {int(right.sum()):,} of {len(right):,} right"
        items.append(("accuracy of the exported model", f"{right.mean():.4f}", note))
        for auc in confusion.predictions.aucs:
            if auc is not None:
                items.append(("AUC of the exported model", f"{auc:.4f}", f"of class {confusion.classes[1]}"))
    if isinstance(baseline := result.get("baseline"), dict):
        shown = ", ".join(f"{LABELS.get(key, key)} {each:.4g}" for key, each in baseline.items() if key != "what")
        items.append((str(baseline.get("what")), shown, "the best constant prediction"))
    if "global_step" in result:
        of = f"of {settings.train_steps:,}" if settings else ""
        items.append(("global steps", f"{result['global_step']:,}", of))
    if "seconds" in result:
        rate = result.get("steps_per_second")
        items.append(("training", write_duration(result["seconds"]), f"{rate:,.1f} steps/s" if rate else ""))
    if used := goodput.describe(goodput.read(result)):
        share, _, parts_of_time = used.partition(": ")
        items.append(("goodput", share.removeprefix("goodput "), parts_of_time))
    if "mode" in result:
        count = f"{_plural(result.get('workers'), 'replica')}, {_plural(result.get('ps'), 'parameter server')}"
        items.append(("replication", str(result["mode"]), count))
    if "model" in result:
        items.append(("model", str(result["model"]), f"exported: {run.export.name}" if run.export else "not exported"))
    if "dataset" in result:
        version = f"version {result['dataset_version']}" if result.get("dataset_version") else ""
        uri = settings.data_dir if settings and result["dataset"] not in ("digits", "train_data") else ""
        items.append(("data", str(result["dataset"]), " ".join(filter(None, (uri, version)))))
    if not items:
        parts.append("<p>The run has written no result yet.</p>")
    digest = result.get("dataset_digest")
    line = f'<p class="mono">SHA-256 of the data: {escape(digest)}</p>' if digest else ""
    return "".join([*parts, facts(items), line, "</header>"])


def _plural(count: object, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _curves(run: Run) -> str:
    best = (run.result.get("best") or {}).get("global_step")
    figures = []
    names = dict.fromkeys([*run.train, *run.test])
    rank = {"loss": 0, "accuracy": 1, "steps_per_second": 3}
    for name in sorted(names, key=lambda name: rank.get(name, 2)):
        lines = {kind: found[name] for kind, found in (("train", run.train), ("test", run.test)) if name in found}
        title = "steps per second" if name == "steps_per_second" else name.replace("_", " ")
        mark = best if "test" in lines else None
        is_share = all(0 <= value <= 1 for curve in lines.values() for value in (*curve.values[:1], *curve.values[-1:]))
        chart = charts.line_chart(
            title, lines, write_number, is_share and "accuracy" in name, name == "loss" or "error" in name, mark
        )
        keys = {"train": "training batches", "test": "held-out split"}
        legend = "".join(f'<span class="key {kind}">{keys[kind]}</span>' for kind in lines) if len(lines) > 1 else ""
        if not chart:
            figures.append(f"<figure><h3>{escape(title)}</h3><p>No value is finite.</p></figure>")
            continue
        lost = sum(len(curve) - len(curve.finite()) for curve in lines.values())
        notes = [f"{lost} values are not finite"] if lost else []
        notes += [f"dashed: best checkpoint, step {best:,}"] if mark is not None else []
        notes += ["the band is the range of several reports"] if max(map(len, lines.values())) > charts.POINTS else []
        readout = escape("; ".join(notes)) or "by global step"
        figures.append(
            f"<figure><h3>{escape(title)}</h3>{chart}<figcaption>{legend}"
            f'<span class="readout">{readout}</span></figcaption></figure>'
        )
    content = f'<div class="charts">{"".join(figures)}</div>' if figures else "<p>The run has no curves yet.</p>"
    return f'<section id="curves"><h2>Curves</h2>{content}</section>'


def _held_out(confusion: Confusion) -> str:
    head = '<section id="held-out"><h2>Held-out split</h2>'
    found = confusion.predictions
    if found is None:
        return f"{head}<p>{escape(confusion.reason)}</p></section>"
    right = found.right[0]
    counts = statistics.confusion(found.labels, found.predicted[0], len(confusion.classes))
    parts = []
    if len(confusion.classes) <= MATRIX_CLASSES:
        parts.append(f"<div><h3>Confusion matrix</h3>{confusion_table(counts, confusion.classes)}</div>")
    parts.append(f"<div><h3>Most frequent confusions</h3>{_confusions(counts, confusion.classes)}</div>")
    wrong = int((~right).sum())
    sentence = f"The exported model has {wrong:,} of {len(right):,} examples wrong."
    gallery, drawn = _gallery(found, confusion.classes), _threshold_curves(found, confusion.classes)
    return f'{head}<p>{sentence}</p><div class="columns">{"".join(parts)}</div>{drawn}{gallery}</section>'


def _threshold_curves(found: Predictions, names: Sequence[str]) -> str:
    """The ROC curve, and precision by recall, of a model of two classes."""
    if not found.scores or found.aucs[0] is None:
        return ""
    false_positives, recall, precision = statistics.threshold_curves(found.labels, found.scores[0])
    charts_of = (
        ("ROC curve", "share of the other class taken for it", "recall", false_positives, recall),
        ("Precision and recall", "recall", "precision", recall, precision),
    )
    figures = "".join(
        f"<figure><h3>{title} of {escape(names[1])}</h3>{charts.share_chart(f'{title}: {up} by {right}', x, y)}"
        f"<figcaption>{up}, by {right}</figcaption></figure>"
        for title, right, up, x, y in charts_of
    )
    return f'<div class="charts">{figures}</div>'


def _confusions(counts: Array, names: Sequence[str]) -> str:
    classes = range(len(counts))
    pairs = [(int(counts[a, b]), a, b) for a in classes for b in classes if a != b and counts[a, b]]
    pairs.sort(key=lambda pair: (-pair[0], pair[1:]))
    if not pairs:
        return "<p>None.</p>"
    rows = [(names[a], names[b], count, f"{count / counts[a].sum():.1%}") for count, a, b in pairs[:10]]
    return table(["label", "read as", " examples", " of the label"], rows)


def _gallery(found: Predictions, names: Sequence[str]) -> str:
    wrong = [index for index in found.images if not found.right[0][index]]
    if not wrong:
        return ""
    confidence = found.confidence[0]
    wrong.sort(key=lambda index: -confidence[index])
    items = []
    for index in wrong[:PICTURES]:
        label, predicted = names[found.labels[index]], names[found.predicted[0][index]]
        sure = f"{confidence[index]:.0%}" if 0 <= confidence[index] <= 1 else f"{confidence[index]:.3g}"
        description = f"Example {index}: label {label}, read as {predicted}"
        items.append((found.images[index], description, [f"{label} read as {predicted}", f"{sure}, no. {index}"]))
    more = f", the {PICTURES} most certain" if len(wrong) > PICTURES else ", the most certain first"
    return f"<h3>Misread examples{more}</h3>{picture_list(items)}"


def _speed(run: Run) -> str:
    parts = []
    curve = run.train.get("steps_per_second")
    rates = sorted(float(rate) for rate in curve.finite().values if rate > 0) if curve is not None else []
    if rates:
        times = [1000 / rate for rate in rates][::-1]
        tail = times[min(len(times) - 1, int(0.95 * len(times)))]
        items = [
            ("time of a global step, median", f"{averages.median(times):.3g} ms", f"of {len(times):,} reports"),
            ("95 % are below", f"{tail:.3g} ms", ""),
            ("the slowest report", f"{times[-1]:.3g} ms", ""),
        ]
        parts.append(facts(items))
    columns = []
    if run.pauses:
        pauses = [(f"{each.step:,}", write_time(each.time), write_duration(each.seconds)) for each in run.pauses[:10]]
        head = f"<h3>Pauses: {len(run.pauses)}</h3>"
        columns.append(f"<div>{head}{table([' after step', 'from', ' duration'], pauses)}</div>")
    elif rates:
        columns.append("<div><h3>Pauses</h3><p>None of more than five seconds.</p></div>")
    parts.append(
        f'<div class="columns">{"".join(columns)}</div>' if columns else "<p>No step has been reported yet.</p>"
    )
    return f'<section id="speed"><h2>Step times and pauses</h2>{"".join(parts)}</section>'


def _faults(run: Run) -> str:
    rows = []
    for task in run.tasks:
        earlier = 0
        for event in task.events:
            rows += [(event.time, event.task, text) for text in _sentences(event, earlier)]
            earlier += event.kind == "started"
    rows.sort()
    parts = []
    if run.divergences:
        listed = [
            (f"{each.get('global_step', 0):,}", each.get("reason"), each.get("restored")) for each in run.divergences
        ]
        parts.append(table([" step", "divergence", "restored"], listed))
    if rows:
        shown = [(write_time(at), task, text) for at, task, text in rows[-ROWS:]]
        left = f"The last {ROWS} of {len(rows)}." if len(rows) > ROWS else ""
        parts.append(table(["time", "task", "what happened"], shown, left))
    elif not run.tasks:
        parts.append("<p>The directory has no logs, so restarts and lost tasks are not known.</p>")
    elif not run.divergences:
        parts.append("<p>None: no task has started again, lost another one, or failed.</p>")
    if run.tasks:
        starts = [(task.task, task.starts, sum(event.kind == "lost" for event in task.events)) for task in run.tasks]
        parts.append(
            f"<details><summary>Tasks: {len(run.tasks)}</summary>"
            f"{table(['task', ' starts', ' times it lost another task'], starts)}</details>"
        )
    return f'<section id="faults"><h2>Faults</h2>{"".join(parts)}</section>'


def _sentences(event: Event, earlier: int) -> Sequence[str]:
    """What to say about an event of a task that has started `earlier` times before it."""
    if event.kind == "started":
        return [f"started again, start {earlier + 1}"] if earlier else []
    if event.kind == "restored":
        return [f"restored {event.content}"]
    if event.kind == "lost":
        return [str(event.content.get("reason"))]
    if event.kind == "ended":
        return [f"ended with code {event.content.get('code')}: {event.content.get('reason')}"]
    return []


def _checkpoints(run: Run) -> str:
    head = '<section id="checkpoints"><h2>Checkpoints</h2>'
    best = run.result.get("best") or {}
    rows = [
        (
            each.name,
            f"{each.step:,}",
            write_size(each.size) if each.size is not None else "not copied",
            write_time(each.time),
        )
        for each in run.checkpoints
    ]
    kept = ""
    if best:
        measured = ", ".join(
            f"{key.replace('_', ' ')} {value:.4f}"
            for key, value in best.items()
            if key.startswith("test_") and isinstance(value, (int, float))
        )
        name = escape(str(best.get("checkpoint")))
        kept = f"<p>Best: step {best.get('global_step', 0):,}, {escape(measured)}, <code>{name}</code></p>"
    content = table(["checkpoint", " step", " size", "saved"], rows) if rows else "<p>None yet.</p>"
    return f"{head}{kept}{content}</section>"


def _settings(settings: Settings | None) -> str:
    head = '<section id="settings"><h2>Settings</h2>'
    if settings is None:
        return f"{head}<p>The directory has no settings.yaml that this version can read.</p></section>"
    values = {field.name: (getattr(settings, field.name), field.default) for field in dataclasses.fields(settings)}
    changed = [(name, value, default) for name, (value, default) in values.items() if value != default]
    others = [(name, value) for name, (value, default) in values.items() if value == default and value is not None]
    top = table(["setting", "value", "default"], changed) if changed else "<p>All are the defaults.</p>"
    rest = table(["setting", "value"], others)
    return f"{head}{top}<details><summary>Defaults: {len(others)}</summary>{rest}</details></section>"
