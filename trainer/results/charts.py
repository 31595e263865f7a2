"""Line charts as SVG, which a page has inline. Colours and fonts come from the page's style."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from trainer.data.examples import Array
from trainer.run_directory import curves
from trainer.run_directory.curves import Curve

WIDTH, HEIGHT = 400, 200
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 8, 26
POINTS = 400
"""The most points of a curve that are drawn."""
LOGARITHMIC = 30.0
"""The ratio of the largest to the smallest value from which an axis is logarithmic, if it may be."""


@dataclass(frozen=True)
class Axis:
    """Maps values to positions."""

    low: float
    high: float
    begin: float
    """The position of `low`."""
    end: float
    is_logarithmic: bool = False

    def position(self, values: Array) -> Array:
        """The positions of values, which are inside or at the ends of the axis."""
        low, high = self._scaled(np.array([self.low, self.high]))
        share = (self._scaled(np.clip(values, self.low, self.high)) - low) / (high - low)
        return np.asarray(self.begin + share * (self.end - self.begin))

    def _scaled(self, values: Array) -> Array:
        return np.log10(values) if self.is_logarithmic else values

    @property
    def ticks(self) -> list[float]:
        """About five round values."""
        if self.is_logarithmic:
            exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            every = max(1, len(exponents) // 5)
            decades = [10.0**exponent for exponent in exponents][::every]
            return [each for each in decades if self.low <= each <= self.high]
        raw = (self.high - self.low) / 5
        unit = 10.0 ** math.floor(math.log10(raw))
        step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= raw * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [index * step for index in range(first, math.floor(self.high / step + 1e-9) + 1)]


def line_chart(
    title: str,
    lines: Mapping[str, Curve],
    write: Callable[[float], str],
    is_share: bool = False,
    may_be_logarithmic: bool = False,
    mark: int | None = None,
) -> str:
    """A chart of curves by global step, as an SVG element; empty if they have no finite point.

    Args:
        title: What the values are, for readers that do not see the picture.
        lines: The curves by name, such as train and test; each name is a class of the style.
        write: Writes a value.
        is_share: Whether values are in [0, 1], and near 1 at the end.
        may_be_logarithmic: Whether the axis of the values may be logarithmic.
        mark: A global step to mark.
    """
    curves_ = {name: curve.finite() for name, curve in lines.items()}
    shown = {name: curve for name, curve in curves_.items() if len(curve)}
    if not shown:
        return ""
    drawn = {name: curves.shorten(curve, POINTS) for name, curve in shown.items()}
    values = np.concatenate([curve.values for curve in shown.values()])
    means = np.concatenate([line.mean for line in drawn.values()])
    y = _value_axis(values, means, is_share, may_be_logarithmic)
    last = max(float(curve.steps[-1]) for curve in shown.values())
    x = Axis(0.0, max(last, 1.0), LEFT, WIDTH - RIGHT)
    parts = [*_grid(x, y, write)]
    if mark is not None and 0 <= mark <= last:
        at = _text(x.position(np.array(float(mark))))
        parts.append(f'<line class="mark" x1="{at}" x2="{at}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
    for name, line in drawn.items():
        across, along = x.position(line.steps), y.position(line.mean)
        if (line.high > line.low).any():
            edge = [*zip(across, y.position(line.high), strict=True)]
            back = [*zip(across[::-1], y.position(line.low)[::-1], strict=True)]
            parts.append(f'<polygon class="band {name}" points="{_points([*edge, *back])}"/>')
        points = [*zip(across, along, strict=True)]
        parts.append(f'<polyline class="line {name}" data-name="{name}" points="{_points(points)}"/>')
        if len(points) <= 40:
            parts += [f'<circle class="{name}" cx="{_text(at)}" cy="{_text(up)}" r="2.5"/>' for at, up in points]
    summary = "; ".join(
        f"{name} from {write(float(curve.values[0]))} to {write(float(curve.values[-1]))}"
        for name, curve in shown.items()
    )
    scale = f'data-x="{x.low:g} {x.high:g}" data-y="{y.low:.6g} {y.high:.6g}" data-log="{int(y.is_logarithmic)}"'
    label = escape(f"{title} by global step, up to step {last:,.0f}: {summary}", quote=True)
    box = f'data-box="{LEFT} {WIDTH - RIGHT} {HEIGHT - BOTTOM} {TOP}"'
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}" {scale} {box}>'
        f"{''.join(parts)}</svg>"
    )


def share_chart(title: str, across: Array, along: Array) -> str:
    """A chart of shares by shares, as an SVG element.

    Args:
        title: What is shown, for readers that do not see the picture.
        across: float64 [n], in [0, 1].
        along: The same.
    """
    x, y = Axis(0.0, 1.0, LEFT, WIDTH - RIGHT), Axis(0.0, 1.0, float(HEIGHT - BOTTOM), float(TOP))
    kept = np.unique(np.linspace(0, len(across) - 1, POINTS).astype(int))
    points = [*zip(x.position(across[kept]), y.position(along[kept]), strict=True)]
    grid = "".join(_grid(x, y, "{:g}".format, "{:g}".format))
    line = f'<polyline class="line test" points="{_points(points)}"/>'
    label = escape(title, quote=True)
    return f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{grid}{line}</svg>'


def _value_axis(values: Array, means: Array, is_share: bool, may_be_logarithmic: bool) -> Axis:
    begin, end = float(HEIGHT - BOTTOM), float(TOP)
    if may_be_logarithmic and means.min() > 0 and means.max() > LOGARITHMIC * means.min():
        return Axis(max(float(means.min()) / 2, 1e-12), float(means.max()) * 1.5, begin, end, is_logarithmic=True)
    if is_share:
        low = max(0.0, math.floor(float(np.quantile(values, 0.02)) * 10 - 0.5) / 10)
        return Axis(min(low, 0.9), 1.0, begin, end)
    high = float(means.max())
    return Axis(min(0.0, float(means.min())), high * 1.1 if high > 0 else 1.0, begin, end)


def _grid(
    x: Axis, y: Axis, write: Callable[[float], str], write_across: Callable[[float], str] = "{:,.0f}".format
) -> Sequence[str]:
    parts = []
    for value in y.ticks:
        up = _text(y.position(np.array(value)))
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up}" y2="{up}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{up}" dy="0.32em" text-anchor="end">{escape(write(value))}</text>')
    for value in x.ticks:
        at = _text(x.position(np.array(value)))
        anchor = "end" if value > 0.97 * x.high else "middle"
        parts.append(f'<text x="{at}" y="{HEIGHT - BOTTOM + 18}" text-anchor="{anchor}">{write_across(value)}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM}"/>')
    return parts


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{_text(at)},{_text(up)}" for at, up in points)


def _text(position: float | Array) -> str:
    return f"{float(position):.1f}".removesuffix(".0")
