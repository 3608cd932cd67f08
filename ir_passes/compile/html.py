"""Tables and lists as escaped HTML."""

from collections.abc import Iterable, Sequence
from html import escape


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; integers have thousands separators and the class "number"."""
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
    """Return a heading with its state, green if `holds`."""
    colour = "#137333" if holds else "#c5221f"
    return f'<p><b>{escape(title)}: <span style="color:{colour}">{escape(state)}</span></b><br>{escape(remark)}</p>'


def lists(sections: Sequence[tuple[str, Sequence[object]]], opened: Sequence[str]) -> str:
    """Return folded lists of statements under headings, without empty lists."""
    return "".join(
        f"<details{' open' if heading in opened else ''}><summary>{escape(heading)} ({len(lines)})</summary>"
        f"<ul>{''.join(f'<li>{escape(str(line))}</li>' for line in lines)}</ul></details>"
        for heading, lines in sections
        if lines
    )
