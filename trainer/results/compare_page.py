"""The page that compares two models: `trainer models compare --html`."""

import time
from html import escape

import trainer
from trainer.data.examples import Array
from trainer.results import statistics
from trainer.results.comparison import Comparison
from trainer.results.html import facts, page, picture_list, table, write_time

PICTURES = 120
"""The most examples that are shown."""


def make(found: Comparison) -> str:
    """The page, as HTML."""
    first, second = found.models
    version = f" version {found.dataset.version}" if found.dataset.version else ""
    digest = f'<p class="mono">SHA-256 of the data: {found.dataset.digest}</p>' if found.dataset.digest else ""
    total = len(found.predictions.labels)
    warnings = "".join(f'<p class="problem">{escape(each)}</p>' for each in found.warnings)
    items = []
    for letter, named, right in zip("AB", found.models, found.predictions.right, strict=True):
        low, high = statistics.wilson(int(right.sum()), total)
        note = f"95 %: {low:.4f} to {high:.4f}; {int(right.sum()):,} of {total:,} right"
        items.append((f"accuracy of {letter}: {named.place}", f"{right.mean():.4f}", note))
    for letter, named, losses in zip("AB", found.models, found.predictions.losses, strict=True):
        items.append((f"log loss of {letter}: {named.place}", f"{losses.mean():.4f}", ""))
    for letter, named, auc in zip("AB", found.models, found.predictions.aucs, strict=False):
        if auc is not None:
            items.append((f"AUC of {letter}: {named.place}", f"{auc:.4f}", ""))
    both, only_first, only_second, neither = found.table
    rows = [("A right", both, only_first), ("A wrong", only_second, neither)]
    conclusions = "".join(f"<p>{escape(each)}</p>" for each in (found.conclusion, *found.sentences))
    body = (
        f"<header><h1>{escape(first.place)} and {escape(second.place)}</h1>"
        f"<p>{total:,} held-out examples of {escape(found.dataset.name + version)}</p>{facts(items)}{digest}</header>"
        f'<section id="test"><h2>Comparison</h2>{conclusions}{warnings}'
        f"{table(['', ' B right', ' B wrong'], rows)}</section>"
        f'<section id="examples"><h2>Examples on which they differ</h2>{_examples(found)}</section>'
        f"<footer>Written {escape(write_time(time.time()))} by trainer models compare {trainer.__version__}.</footer>"
    )
    return page(f"{first.place} and {second.place}", body)


def _examples(found: Comparison) -> str:
    predictions = found.predictions
    first, second = predictions.predicted
    differ = [index for index in range(len(first)) if first[index] != second[index]]
    if not differ:
        return "<p>There are none: the models predict the same for each example.</p>"
    shown = [index for index in differ if index in predictions.images][:PICTURES]
    parts = [f"<p>{len(differ):,} of {len(first):,}{f'; {len(shown)} are shown' if shown else ''}.</p>"]
    for title, kept in (
        ("Only A is right", [index for index in shown if first[index] == predictions.labels[index]]),
        ("Only B is right", [index for index in shown if second[index] == predictions.labels[index]]),
        (
            "Neither is right",
            [index for index in shown if predictions.labels[index] not in (first[index], second[index])],
        ),
    ):
        if kept:
            pictures = picture_list(_picture(found, index) for index in kept)
            parts.append(f"<h3>{title}: {len(kept)}</h3>{pictures}")
    if not shown:
        rows = [(index, *_names(found, index)) for index in differ[:PICTURES]]
        parts.append(table([" example", " label", " A", " B"], rows))
    return "".join(parts)


def _names(found: Comparison, index: int) -> list[str]:
    """The names of an example's label and of what the models predict."""
    predictions = found.predictions
    return [found.classes[each[index]] for each in (predictions.labels, *predictions.predicted)]


def _picture(found: Comparison, index: int) -> tuple[Array, str, list[str]]:
    label, first, second = _names(found, index)
    description = f"Example {index}: label {label}, A reads {first}, B reads {second}"
    return found.predictions.images[index], description, [f"{label}, no. {index}", f"A {first}, B {second}"]
