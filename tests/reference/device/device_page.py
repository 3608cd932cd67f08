"""The Markdown page of scripts/check_device.py: a table per part, then failures."""

from collections.abc import Mapping, Sequence
from typing import Any

from device_records import FAILED, NOT_RUN, PASSED

MAX_LINES = 200
MAX_TRACEBACK_LINES = 12
MAX_CELL = 300


def page(records: Sequence[Mapping[str, Any]], parts: Sequence[str], states: Mapping[str, str]) -> str:
    """Return the page.

    Args:
        records: of all parts.
        parts: names of the parts in their order.
        states: name of a part -> what became of its process.
    """
    rows = {part: _rows(records, part) for part in parts}
    every = [row for part in parts for row in rows[part]]
    head = [f"# hybridlm on {_device(records)}: {verdict(every)}", ""]
    count = {name: sum(row["verdict"] == name for row in every) for name in (PASSED, FAILED, NOT_RUN)}
    head += [", ".join(f"{number} {name}" for name, number in count.items()) + ". All figures: results.jsonl.", ""]
    failures = [line for row in every if row["verdict"] == FAILED for line in _failure(row)]
    tables = {part: [_line(row) for row in rows[part]] for part in parts}
    # failures first get up to a third of the page, then tables are cut from the longest
    output = failures[
        : max(MAX_LINES // 3, MAX_LINES - len(head) - sum(map(len, tables.values())) - 6 * len(parts) - 3)
    ]
    room = MAX_LINES - len(head) - len(output) - 6 * len(parts) - 3
    longest = max(map(len, tables.values()), default=0)
    while longest > 1 and sum(min(len(table), longest) for table in tables.values()) > room:
        longest -= 1
    lines = head
    for part in parts:
        lines += [f"## {part}: {states.get(part, NOT_RUN)}", ""]
        if table := tables[part]:
            lines += ["| check | verdict | s | figures |", "|---|---|---|---|", *table[:longest]]
            if len(table) > longest:
                lines.append(f"| {len(table) - longest} more in results.jsonl | | | |")
            lines.append("")
    if output:
        lines += ["## Failures", "", *output]
    if len(output) < len(failures):
        lines = [*lines[: MAX_LINES - 1], f"{len(failures) - len(output)} more lines of failures in results.jsonl"]
    return "\n".join(lines[:MAX_LINES]) + "\n"


def verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the worst verdict of rows."""
    verdicts = {row["verdict"] for row in rows}
    return FAILED if FAILED in verdicts else "incomplete" if NOT_RUN in verdicts or not rows else PASSED


def _rows(records: Sequence[Mapping[str, Any]], part: str) -> list[Mapping[str, Any]]:
    """Return a part's records, failures first, and rows for missing checks."""
    local = [record for record in records if record.get("part") == part]
    finished = [record for record in local if "name" in record]
    names = {record["name"] for record in finished}
    planned = dict.fromkeys(name for record in local for name in record.get("planned", ()))
    missing = [
        {
            "part": part, "name": name, "verdict": NOT_RUN, "seconds": 0, "figures": {}, "why": "no record",
            "traceback": "",
        }
        for name in planned
        if name not in names
    ]  # fmt: skip
    return sorted([*finished, *missing], key=lambda row: row["verdict"] != FAILED)


def _device(records: Sequence[Mapping[str, Any]]) -> str:
    kinds = [record["figures"]["device"] for record in records if "device" in record.get("figures", {})]
    return str(kinds[0]) if kinds else "an unknown device"


def _line(row: Mapping[str, Any]) -> str:
    figures = ", ".join(f"{name} {_short(value)}" for name, value in row["figures"].items())
    why = f" ({row['why']})" if row["why"] and row["verdict"] == NOT_RUN else ""
    return f"| {_cell(row['name'])} | {row['verdict']}{_cell(why)} | {row['seconds']:.1f} | {_cell(figures)} |"


def _failure(row: Mapping[str, Any]) -> list[str]:
    trace = row["traceback"].rstrip().splitlines()[-MAX_TRACEBACK_LINES:]
    why = row["why"].splitlines()[0][:MAX_CELL] if row["why"] else ""
    return [f"* {row['part']}, {row['name']}: {why}", *(f"      {line[:MAX_CELL]}" for line in trace)]


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")[:MAX_CELL]


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
