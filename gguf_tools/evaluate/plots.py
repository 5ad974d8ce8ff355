"""Plots as SVG that needs nothing else: a logarithmic vertical axis, one colour per series."""

import html
import math

_COLOURS = ("#1f6fb4", "#d95f02", "#1b9e77", "#b0288c", "#7a6a00", "#666666")
_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 320, 70, 10
_LOWEST = 1e-9  # what is below, 0 included, is drawn there


def lines(series: dict[str, list[tuple]], x_title: str, y_title: str) -> str:
    """Each series (x, y) as a line."""
    return _plot(series, x_title, y_title, _line)


def dots(series: dict[str, list[tuple]], x_title: str, y_title: str) -> str:
    """Each series (x, y, what it is) as dots that say what they are."""
    return _plot(series, x_title, y_title, _dots)


def _line(points: list[tuple], place, colour: str) -> str:
    where = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y, *_ in points)
    return f'<polyline points="{where}" fill="none" stroke="{colour}" stroke-width="2"/>'


def _dots(points: list[tuple], place, colour: str) -> str:
    parts = []
    for x, y, what in points:
        cx, cy = place(x, y)
        parts.append(
            f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="4" fill="{colour}" fill-opacity=".7">'
            f"<title>{html.escape(what)}: {y:.3g}</title></circle>"
        )
    return "".join(parts)


def _plot(series: dict[str, list[tuple]], x_title: str, y_title: str, draw) -> str:
    points = [point for some in series.values() for point in some]
    if not points:
        return "<p>Nothing to show.</p>"
    left, right = min(p[0] for p in points), max(p[0] for p in points)
    if left == right:
        left, right = left - 1, right + 1
    powers = [math.log10(max(p[1], _LOWEST)) for p in points]
    low, high = math.floor(min(powers)), math.ceil(max(powers))
    high = max(high, low + 1)

    def place(x: float, y: float) -> tuple[float, float]:
        power = math.log10(max(y, _LOWEST))
        return (
            _LEFT + _WIDTH * (x - left) / (right - left),
            _TOP + _HEIGHT * (high - power) / (high - low),
        )

    parts = []
    for power in range(low, high + 1):
        _, y = place(left, 10.0**power)
        parts.append(f'<path d="M{_LEFT} {y:.1f}h{_WIDTH}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">1e{power}</text>')
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = left + share * (right - left)
        at, _ = place(x, 1)
        parts.append(
            f'<text x="{at:.1f}" y="{_TOP + _HEIGHT + 18}" text-anchor="middle">{x:.4g}</text>'
        )
    middle = _LEFT + _WIDTH / 2
    for x, y, turn, text in (
        (middle, _TOP + _HEIGHT + 36, "", x_title),
        (14, _TOP + _HEIGHT / 2, f' transform="rotate(-90 14 {_TOP + _HEIGHT / 2})"', y_title),
    ):
        parts.append(f'<text x="{x}" y="{y}" text-anchor="middle"{turn}>{html.escape(text)}</text>')
    for number, (name, some) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(draw(some, place, colour))
        y = _TOP + _HEIGHT + 58 + 18 * number
        parts.append(f'<path d="M{_LEFT} {y - 4}h20" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{_LEFT + 28}" y="{y}">{html.escape(name)}</text>')
    total = _TOP + _HEIGHT + 66 + 18 * len(series)
    return f'<svg width="{_LEFT + _WIDTH + 20}" height="{total}">{"".join(parts)}</svg>'
