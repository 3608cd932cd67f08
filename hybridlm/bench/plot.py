"""SVG plot of a benchmark: throughput and fraction of the floor by lanes."""

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, GAP, LEFT, TOP, BOTTOM = 420, 300, 90, 70, 50, 50
COLOURS = ("#1b6ca8", "#d1495b", "#66a182", "#8d6a9f", "#edae49", "#555555")
Series = Mapping[str, Sequence[float]]


def plot(title: str, lanes: Sequence[int], tokens_per_second: Series, fractions: Series) -> str:
    width, height = 2 * (LEFT + WIDTH) + GAP, TOP + HEIGHT + BOTTOM
    panels = _panel(LEFT, "tokens/s", lanes, tokens_per_second)
    panels += _panel(2 * LEFT + WIDTH + GAP // 2, "fraction of the floor", lanes, fractions, minimum=1.0)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            f'<text x="{LEFT}" y="24" font-size="16">{escape(title)}</text>',
            *panels,
            "</svg>\n",
        ]
    )


def _panel(begin: int, label: str, lanes: Sequence[int], series: Series, minimum: float = 0.0) -> list[str]:
    highest = max([minimum, *(value for values in series.values() for value in values)], default=1.0) or 1.0
    step = _tick(highest)
    count = -int(-highest // step)
    top = count * step

    def x(i: int) -> float:
        return begin + WIDTH * (i + 0.5) / len(lanes)

    def y(value: float) -> float:
        return TOP + HEIGHT * (1 - value / top)

    lines = [f'<text x="{begin}" y="{TOP - 8}">{escape(label)}</text>']
    for i in range(count + 1):
        height = y(i * step)
        lines.append(f'<line x1="{begin}" y1="{height:.1f}" x2="{begin + WIDTH}" y2="{height:.1f}" stroke="#dddddd"/>')
        lines.append(f'<text x="{begin - 6}" y="{height + 4:.1f}" text-anchor="end">{i * step:g}</text>')
    for i, number in enumerate(lanes):
        lines.append(f'<text x="{x(i):.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{number}</text>')
    lines.append(f'<text x="{begin + WIDTH // 2}" y="{TOP + HEIGHT + 38}" text-anchor="middle">lanes</text>')
    for i, (name, values) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        points = " ".join(f"{x(j):.1f},{y(value):.1f}" for j, value in enumerate(values))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for j, value in enumerate(values):
            lines.append(f'<circle cx="{x(j):.1f}" cy="{y(value):.1f}" r="3" fill="{colour}"/>')
        lines.append(f'<text x="{begin + 8}" y="{TOP + 14 + 16 * i}" fill="{colour}">{escape(name)}</text>')
    return lines


def _tick(highest: float) -> float:
    power = 10.0 ** (len(str(int(highest))) - 1) if highest >= 1 else 0.1
    return next(power * factor for factor in (0.2, 0.5, 1.0, 2.0) if highest / (power * factor) <= 6)
