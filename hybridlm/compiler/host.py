"""Host records of a step: the holder of each row, and its expected contents."""

from ir_passes.host.local_slots import bind_local
from ir_passes.host.packed_tokens import check_packed, segment_ids
from ir_passes.host.page_owner import Page, PageOwner
from ir_passes.host.page_tables import check_page_tables, written_places
from ir_passes.host.row_ledger import Expected, Label, LaneWork, ReservedOwner, RowLedger
from ir_passes.host.slot_faults import SlotError, SlotFault, SlotsExhausted
from ir_passes.host.slot_owner import Slot, SlotOwner

__all__ = [
    "Expected",
    "Label",
    "Page",
    "PageOwner",
    "ReservedOwner",
    "RowLedger",
    "Slot",
    "SlotError",
    "SlotFault",
    "SlotOwner",
    "SlotsExhausted",
    "LaneWork",
    "bind_local",
    "check_packed",
    "check_page_tables",
    "segment_ids",
    "written_places",
]
