"""Lanes of computed token indices."""

from dataclasses import replace

import pytest

from ir_passes.proof.numbering import Number
from ir_passes.proof.rules.addressing.index_sums import difference, in_lane, single
from ir_passes.proof.values import Condition, OffsetEntry, Symbol


@pytest.mark.parametrize(("start", "is_lane"), [
    (OffsetEntry("tokens", 0, 0), True), (OffsetEntry("tokens", 1, 0), False), (OffsetEntry("tokens", 2), True),
    (OffsetEntry("tokens", -1), False), (OffsetEntry("tokens", 1, symbol=Symbol(Number(7), 3)), False),
])  # fmt: skip
def test_a_guessed_lane_is_the_lane_of_its_index(start: OffsetEntry, is_lane: bool) -> None:
    """Guesses are not trusted: an entry along an axis may begin the next lane."""
    stop = single(replace(start, first=start.first + 1))
    assert in_lane(single(start), start, [Condition(difference(stop, single(start), -1))]) is is_lane
