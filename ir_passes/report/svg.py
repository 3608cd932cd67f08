"""Pictures of a plan as SVG: live ranges of the scratch, and the arena that holds it, coloured by lane."""

from collections.abc import Mapping
from html import escape
from typing import Any

from ir_passes.jaxpr.ir import source_of
from ir_passes.proof.ownership import Ownership
from ir_passes.scratch.plan import PlacedBuffer, Plan

WIDTH, ROW, MARGIN = 1100, 7, 60
COLOURS = {"shared": "#9aa0a6", "pool": "#5f6368", "mixed": "#d93025", "body": "#c9b458"}
MAX_STRIPES = 12_000
INK = "#5f6368"

Owners = Mapping[Any, Ownership]


def lane_colour(lane: int, lanes: int) -> str:
    """A colour of its own for each lane."""
    return f"hsl({360 * lane // max(lanes, 1)} 62% 52%)"


def key(lanes: int) -> str:
    """The legend of the colours."""
    swatches = [(f"lane {lane}", lane_colour(lane, lanes)) for lane in range(lanes)]
    swatches += [("shared", COLOURS["shared"]), ("pool", COLOURS["pool"]), ("bodies of loops", COLOURS["body"])]
    box = "display:inline-block;width:.9em;height:.9em;margin:0 .3em 0 1em"
    items = "".join(f'<span style="{box};background:{colour}"></span>{name}' for name, colour in swatches)
    return f"<p>{items}</p>"


def live_ranges(plan: Plan, owners: Owners, rows: int) -> tuple[str, int]:
    """Draw a bar for each of the `rows` largest values from its first equation to its last, in order of computation.

    Returns:
        The picture, and how many smaller values it leaves out.
    """
    largest = sorted(plan.placements, key=lambda one: (-one.bytes, one.start))[:rows]
    shown = sorted(largest, key=lambda one: (one.start, one.end))
    scale = (WIDTH - MARGIN) / max(_equations(plan), 1)
    parts = [_axis(plan, scale, ROW * len(shown))]
    for row, one in enumerate(shown):
        x, width = MARGIN + one.start * scale, (one.end - one.start + 1) * scale
        parts.append(_bar(plan, one, owners, x, row * ROW, max(width, 1.0), ROW - 1.5))
    return _svg(parts, ROW * len(shown) + 24), len(plan.placements) - len(shown)


def arena_map(plan: Plan, owners: Owners, height: int = 420) -> str:
    """Draw the arena: bytes upwards, equations to the right, a box for each value."""
    across, up = (WIDTH - MARGIN) / max(_equations(plan), 1), height / max(plan.size, 1)
    parts = [_axis(plan, across, height)]
    parts += [
        f'<text x="0" y="{height - fraction * height + 9:.0f}" fill="{INK}">{int(plan.size * fraction):,}</text>'
        for fraction in (0.25, 0.5, 0.75, 1.0)
    ]
    for one in plan.placements:
        if one.bytes:
            x, width = MARGIN + one.start * across, (one.end - one.start + 1) * across
            y = height - (one.offset + one.bytes) * up
            parts.append(_bar(plan, one, owners, x, y, max(width, 0.7), max(one.bytes * up, 0.5)))
    for equation, block in sorted(plan.blocks.items()):
        y = height - (block.offset + block.bytes) * up
        title = escape(f"scratch of the bodies of equation {equation}, {block.bytes:,} bytes at {block.offset:,}")
        box = _box(MARGIN + equation * across, y, max(across, 0.7), max(block.bytes * up, 0.5), COLOURS["body"])
        parts.append(f"<g><title>{title}</title>{box}</g>")
    return _svg(parts, height + 24)


def _bar(plan: Plan, one: PlacedBuffer, owners: Owners, x: float, y: float, width: float, height: float) -> str:
    eqn = plan.jaxpr.jaxpr.eqns[one.equation]
    owner = owners.get(eqn.outvars[one.result], Ownership("shared"))
    whose = owner.kind if owner.lane is None else f"lane {owner.lane}"
    when = f"equations {one.start} to {one.end}"
    title = f"{one.name}: {one.bytes:,} bytes at {one.offset:,}, {when}, {whose}, {source_of(eqn)}"
    lanes = plan.lanes or 1
    if owner.kind == "lanes" and lanes * len(plan.placements) <= MAX_STRIPES:
        step = height / lanes
        boxes = "".join(
            _box(x, y + height - (lane + 1) * step, width, step, lane_colour(lane, lanes)) for lane in range(lanes)
        )
    elif owner.kind == "lanes":
        boxes = _box(x, y, width, height, "#4285f4")
    elif owner.lane is not None:
        boxes = _box(x, y, width, height, lane_colour(owner.lane, lanes))
    else:
        boxes = _box(x, y, width, height, COLOURS.get(owner.kind, COLOURS["shared"]))
    return f"<g><title>{escape(title)}</title>{boxes}</g>"


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.2f}" fill="{colour}"/>'


def _axis(plan: Plan, scale: float, height: float) -> str:
    last = _equations(plan)
    marks = sorted({last * i // 8 for i in range(9)})
    return "".join(
        f'<line x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{height:.0f}" stroke="#eceff1"/>'
        f'<text x="{x:.1f}" y="{height + 14:.0f}" fill="{INK}">{at}</text>'
        for at, x in ((at, MARGIN + at * scale) for at in marks)
    )


def _equations(plan: Plan) -> int:
    return len(plan.jaxpr.jaxpr.eqns)


def _svg(parts: list[str], height: float) -> str:
    style = "width:100%;height:auto;border:1px solid #dadce0;font:10px ui-monospace,monospace"
    return f'<svg viewBox="0 0 {WIDTH + 40} {height:.0f}" role="img" style="{style}">{"".join(parts)}</svg>'
