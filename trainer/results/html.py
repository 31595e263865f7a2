"""Pieces of a self-contained HTML page: no reference leads out of it."""

import base64
from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from pathlib import Path

from trainer.data.examples import Array
from trainer.telemetry import pictures

HERE = Path(__file__).parent
LARGEST_PICTURE = 64
"""The longest side of a picture in pixels."""


def page(title: str, body: str) -> str:
    """A whole page. The policy forbids the browser to load anything."""
    style = (HERE / "page.css").read_text(encoding="utf-8")
    script = (HERE / "page.js").read_text(encoding="utf-8")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; \
script-src 'unsafe-inline'">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
{body}
<script>
{script}</script>
</body>
</html>
"""


def facts(items: Iterable[tuple[str, str, str]]) -> str:
    """A list of facts: name, value and a note."""
    rows = (
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}{f'<small>{escape(note)}</small>' if note else ''}</dd></div>"
        for name, value, note in items
    )
    return f'<dl class="facts">{"".join(rows)}</dl>'


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A table. Numbers are at the right; a head that begins with a space is that of a column of numbers."""
    is_number = [head.startswith(" ") for head in heads]
    kinds = ["number" if each else "text" for each in is_number]
    top = "".join(
        f'<th scope="col" class="{kind}">{escape(head.strip())}</th>' for head, kind in zip(heads, kinds, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{kind}">{escape(str(cell))}</td>' for cell, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in rows
    )
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f'<div class="scroll"><table>{title}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def confusion_table(counts: Array, names: Sequence[str]) -> str:
    """The confusion matrix: a row for each label, a column for each prediction, and how many of each were found.

    Args:
        counts: int [classes, classes].
        names: Those of the classes.
    """
    classes = range(len(counts))
    heads = "".join(f'<th scope="col">{escape(each)}</th>' for each in names)
    largest = max(1, *(int(counts[row, column]) for row in classes for column in classes if row != column), 1)
    rows = []
    for row in classes:
        total = int(counts[row].sum())
        cells = []
        for column in classes:
            count = int(counts[row, column])
            share = count / max(total, 1) * 0.45 if row == column else count / largest * 0.6
            colour = "42,111,176" if row == column else "205,80,30"
            style = f' style="background:rgba({colour},{share:.2f})"' if count else ""
            cells.append(f"<td{style}>{count or '·'}</td>")
        recall = f"{counts[row, row] / total:.1%}" if total else "–"
        rows.append(
            f'<tr><th scope="row">{escape(names[row])}</th>{"".join(cells)}<td class="share">{recall}</td></tr>'
        )
    columns = [int(counts[:, column].sum()) for column in classes]
    precision = "".join(
        f'<td class="share">{f"{counts[each, each] / columns[each]:.1%}" if columns[each] else "–"}</td>'
        for each in classes
    )
    return (
        '<div class="scroll"><table class="confusion"><caption>Rows: label. Columns: prediction. At the right the '
        "share of a label that was found (recall), below the share of a prediction that was right (precision)."
        "</caption>"
        f'<thead><tr><td></td>{heads}<th scope="col">recall</th></tr></thead><tbody>{"".join(rows)}'
        f'<tr><th scope="row">precision</th>{precision}<td></td></tr></tbody></table></div>'
    )


def picture_list(items: Iterable[tuple[Array, str, Sequence[str]]]) -> str:
    """Pictures: each with its description and the lines below it."""
    found = []
    for image, description, lines in items:
        data = base64.b64encode(pictures.to_png(pictures.to_bytes(image, LARGEST_PICTURE))).decode()
        below = "".join(f"<span>{escape(line)}</span>" for line in lines)
        found.append(
            f'<li><img src="data:image/png;base64,{data}" alt="{escape(description, quote=True)}">{below}</li>'
        )
    return f'<ul class="pictures">{"".join(found)}</ul>'


def write_time(seconds: float) -> str:
    """A time with its zone: 2026-11-24 10:06:57 UTC."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def write_duration(seconds: float) -> str:
    """A duration: 7.1 s, 2 min 5 s or 3 h 20 min."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def write_size(size: float) -> str:
    """A number of bytes: 1.3 MB."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"


def write_number(value: float) -> str:
    """A number of four digits, as short as it gets."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
