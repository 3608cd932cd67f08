"""The host's side of a step: the holder of each row, and a ledger of what each row must hold."""

from ir_passes.host.row_ledger import Expected, Label, LaneWork, LedgerError, RowLedger
from ir_passes.host.slot_owner import Slot, SlotError, SlotOwner, SlotsExhausted, bind_local

__all__ = [
    "Expected",
    "Label",
    "LedgerError",
    "RowLedger",
    "Slot",
    "SlotError",
    "SlotOwner",
    "SlotsExhausted",
    "LaneWork",
    "bind_local",
]
