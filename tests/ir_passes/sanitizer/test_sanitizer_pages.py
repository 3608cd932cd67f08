"""The sanitizer on paged pools: forbidden host inputs are found in the step."""

from typing import Any

import numpy as np
import pytest
from labelled_steps import LabelledSteps
from zoo import pages
from zoo.catalogue import PROGRAMS
from zoo.pages import LANES, PAGE, PAGES

from ir_passes.sanitizer.verdict import LabelFault, LaneFault, SanitizerError

DECODE = PROGRAMS["paged attention, decoding"]


def run(args: tuple[Any, ...], program: Any = DECODE) -> None:
    steps = LabelledSteps(program.step, args, program.contract, compiled=True)
    steps.take(args, [(1 + lane, 0, 1) for lane in range(LANES)])


def tables(change: Any) -> tuple[Any, ...]:
    """Arguments with another page of lane 1 at the position that it writes to."""
    w, cache, table, positions, x = DECODE.args()
    table = table.copy()
    table[1, positions[1] // PAGE] = change(table)
    return w, cache, table, positions, x


@pytest.mark.parametrize("name", [program.name for program in pages.PROGRAMS])
def test_right_tables_are_no_fault(name: str) -> None:
    run(PROGRAMS[name].args(), PROGRAMS[name])


@pytest.mark.parametrize(("change", "lanes"), [
    (lambda table: table[2, 1], {1, 2}), (lambda table: 0, {1}), (lambda table: table[0, 0], {1}),
], ids=["page of lane 2", "null page", "shared page"])  # fmt: skip
def test_wrong_page_is_found_at_the_write(change: Any, lanes: set[int]) -> None:
    args = tables(change)
    with pytest.raises(SanitizerError, check=lambda error: LabelFault.PAGE in error.ids) as raised:
        run(args)
    assert all("zoo/pages.py" in fault.source for fault in raised.value.faults if isinstance(fault, LaneFault))
    assert 1 in raised.value.lanes
    assert set(raised.value.lanes) <= lanes


def test_row_of_another_lane_is_found() -> None:
    program = PROGRAMS["flat token pool of several layers"]
    w, cache, table, rows, positions, x = program.args()
    assert rows[2] < PAGES * PAGE
    rows = np.where(np.arange(LANES) == 1, rows[2], rows).astype(np.int32)
    with pytest.raises(SanitizerError, check=lambda error: LabelFault.PAGE in error.ids):
        run((w, cache, table, rows, positions, x), program)


def test_page_of_another_lane_is_found_in_a_flattened_pool() -> None:
    program = PROGRAMS["pages seen as a flat token pool"]
    pool, table, positions, x = program.args()
    table = table.copy()
    table[1, positions[1] // PAGE] = table[2, 0]
    with pytest.raises(SanitizerError, check=lambda error: LabelFault.PAGE in error.ids) as raised:
        run((pool, table, positions, x), program)
    assert 1 in raised.value.lanes


PACKED = PROGRAMS["packed tokens, slot mapping"]


@pytest.mark.slow
def test_right_packed_step_is_no_fault() -> None:
    run(PACKED.args(), PACKED)


@pytest.mark.slow
@pytest.mark.parametrize("change", [lambda cu: cu + 1, lambda cu: cu[::-1].copy()], ids=["begins with 1", "falls"])
def test_wrong_layout_is_found(change: Any) -> None:
    w, x, cu, *rest = PACKED.args()
    with pytest.raises(SanitizerError, check=lambda error: LabelFault.PACKED in error.ids):
        run((w, x, change(cu), *rest), PACKED)


@pytest.mark.slow
def test_row_of_another_lane_s_token_is_found() -> None:
    w, x, cu, pool, table, rows = PACKED.args()
    rows = rows.copy()
    rows[cu[1]] = rows[0]
    with pytest.raises(SanitizerError, check=lambda error: LabelFault.PAGE in error.ids):
        run((w, x, cu, pool, table, rows), PACKED)
