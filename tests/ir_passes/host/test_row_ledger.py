"""The ledger expects the labels of each sequence, and refuses forgotten sequences."""

import numpy as np
import pytest

from ir_passes.host.row_ledger import LaneWork, ReservedOwner, RowLedger
from ir_passes.host.slot_faults import SlotError, SlotFault


def test_the_ledger_detects_forgotten_sequences() -> None:
    ledger = RowLedger()
    with pytest.raises(SlotError) as error:
        ledger.expect([LaneWork(5, 3, 1), LaneWork(5, 0, 1), LaneWork(0, 0, 1)])
    assert [(fault.id, fault.about) for fault in error.value.faults] == [
        (SlotFault.NO_LABEL, "lane 0"),
        (SlotFault.TWO_LANES, "lanes 0 and 1"),
        (SlotFault.OWNER, "lane 2"),
    ]
    assert ledger.epoch == 0
    with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.NO_LABEL,)):
        ledger.label(5)
    expected = ledger.expect([LaneWork(5, 0, 3), None])
    array, rest = (np.asarray(labels) for labels in expected)
    assert array.tolist() == [[ReservedOwner.FRESH, 0, 0, 0], [ReservedOwner.ANY, 0, 0, 0]]
    assert rest.tolist() == [[5, 3, 0, 1], [ReservedOwner.NOBODY, 0, 0, 1]]
    with pytest.raises(ValueError):
        array.setflags(write=True)
