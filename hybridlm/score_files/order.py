"""Order of rows for scoring: rows with a common prefix are neighbours.

Consecutive rows (a sort window) are sorted by their first characters, in parts; joining restores their order.
"""

import json
import zlib
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from hybridlm.files.parts import Contents
from hybridlm.prefix_cache.radix_tree import common_length
from hybridlm.score_files.rows import InputRow, SortedParts, TextSource
from hybridlm.score_files.survey import Limits, RowWindow

DEFAULT_SORT_WINDOW = 1 << 26
MIN_SAVED = 0.1
"""Share of common text that makes sorting worthwhile."""
MAX_PART_WINDOWS = 8
"""Windows of a part of sorted rows: each copy of a common prefix counts."""
PROMPT_FIELDS = ("tools", "chat_template_kwargs", "messages", "prompt")
FIRST_LEVEL, LEVELS = 64, 12
"""Characters of the shortest compared beginning, and the number of beginnings, each twice as long."""
SortWindow = tuple[int, np.ndarray | None]
"""Number of parts of consecutive rows; row of each place in them, int64 [rows], or None in order."""


def in_windows(parts: Contents, windows: Sequence[SortWindow]) -> Iterator[SortedParts]:
    first = 0
    for count, order in windows:
        yield parts[first : first + count], order
        first += count


Planned = tuple[SortWindow, Iterator[list[InputRow]]]


def plan(source: TextSource, windows: Sequence[RowWindow], limits: Limits) -> Iterator[Planned]:
    """Yield the sort windows of consecutive windows of rows.

    A first pass finds the common share: rows with little in common stay in their windows. Take a window's rows before
    the next.
    """
    if not windows:
        return
    first_pass, second_pass = source.rows(windows[0].start), source.rows(windows[0].start)
    for group in grouped(windows, limits.sorted):
        count = sum(window.rows for window in group)
        share = common_share(row for row, _ in islice(first_pass, count)) if limits.sorted else 0.0
        rows = (row for row, _ in islice(second_pass, count))
        if share >= MIN_SAVED:
            unsorted = list(rows)
            parts = sorted_parts(unsorted, limits)
            yield (len(parts), np.concatenate(parts)), ([unsorted[i] for i in part] for part in parts)
        else:
            yield (len(group), None), (list(islice(rows, window.rows)) for window in group)
            deque(rows, maxlen=0)  # skips the other rows


def grouped(windows: Iterable[RowWindow], limit: int) -> Iterator[list[RowWindow]]:
    """Yield groups of consecutive windows, of at most `limit` bytes or one window."""
    group, group_size = list[RowWindow](), 0
    for window in windows:
        if group and group_size + window.size > limit:
            yield group
            group, group_size = [], 0
        group.append(window)
        group_size += window.size
    if group:
        yield group


def beginning(row: InputRow) -> str:
    if row.fault is not None:
        return ""
    item = row.item
    if row.key == "body":
        body = item.get("body")
        item = {name: body[name] for name in PROMPT_FIELDS if name in body} if isinstance(body, dict) else {}
    if not isinstance(item, dict):
        return item if isinstance(item, str) else json.dumps(item)
    if "messages" in item:
        # Templates write tools before the messages.
        return json.dumps([item.get("tools"), item.get("chat_template_kwargs"), item["messages"]], sort_keys=True)
    if "prompt" not in item:
        return json.dumps(item)
    prompt = item["prompt"]
    return (prompt if isinstance(prompt, str) else json.dumps(prompt)) + json.dumps(item.get("completion"))


def sorted_parts(rows: Sequence[InputRow], limits: Limits) -> list[np.ndarray]:
    """Return each part's row places, int64, sorted by beginnings."""
    begins = [beginning(row) for row in rows]
    order = sorted(range(len(rows)), key=begins.__getitem__)
    parts: list[np.ndarray] = []
    part, distinct, size, last = list[int](), 0, 0, ""
    for place in order:
        shared = common_length(last, begins[place]) if part else 0
        part.append(place)
        last = begins[place]
        distinct, size = distinct + max(rows[place].size - shared, 1), size + rows[place].size
        if len(part) >= limits.rows or distinct >= limits.bytes or size >= MAX_PART_WINDOWS * limits.bytes:
            parts.append(np.array(part, np.int64))
            part, distinct, size = [], 0, 0
    if part:
        parts.append(np.array(part, np.int64))
    return parts


def common_share(rows: Iterable[InputRow]) -> float:
    sums = [array("I") for _ in range(LEVELS)]
    total = 0
    for row in rows:
        text, total = beginning(row), total + row.size
        checksum, begin = 0, 0
        for level in range(LEVELS):
            end = FIRST_LEVEL << level
            if len(text) < end:
                break
            checksum = zlib.crc32(text[begin:end].encode("utf-8", "surrogatepass"), checksum)
            sums[level].append(checksum)
            begin = end
    saved = 0
    for level, values in enumerate(sums):
        repeated = len(values) - np.unique(np.frombuffer(values, np.uint32)).size if values else 0
        saved += repeated * (FIRST_LEVEL << level) // (1 if level == 0 else 2)
    return saved / max(total, 1)
