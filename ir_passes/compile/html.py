"""Tables and lists as escaped HTML for pages and notebooks."""

from collections.abc import Iterable, Sequence
from html import escape


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table: thousands separators, class "number", booleans as yes and no."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return f"<td>{'yes' if value else 'no'}</td>"
    if isinstance(value, int):
        return f'<td class="number">{value:,}</td>'
    return f"<td>{escape(str(value))}</td>"


def headed(title: str, holds: bool, state: str, remark: str) -> str:
    """Return the heading: the title, and whether it is certified."""
    colour = "#137333" if holds else "#c5221f"
    return f'<p><b>{escape(title)}: <span style="color:{colour}">{escape(state)}</span></b><br>{escape(remark)}</p>'


def lists(sections: Sequence[tuple[str, Sequence[object]]], opened: Sequence[str]) -> str:
    """Return statements under headings that a click opens, without empty ones."""
    return "".join(
        f"<details{' open' if heading in opened else ''}><summary>{escape(heading)} ({len(lines)})</summary>"
        f"<ul>{''.join(f'<li>{escape(str(line))}</li>' for line in lines)}</ul></details>"
        for heading, lines in sections
        if lines
    )
