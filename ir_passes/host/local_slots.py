"""Row numbers of a step split over devices, with an owner per device."""

from collections.abc import Sequence

import numpy as np

from ir_passes.host.slot_faults import SlotError, SlotFault
from ir_passes.host.slot_owner import Slot, SlotOwner, frozen_copy


def bind_local(owners: Sequence[SlotOwner], slots: Sequence[Slot | None], lanes: int) -> np.ndarray:
    """Return the row numbers of a step split over devices, int32 [lanes].

    As in `SlotMap(..., local=axis)`, devices number their rows separately: lane i uses owner
    `i // (lanes // len(owners))`.

    Args:
        owners: one per device along the mesh axis.
        slots: one per lane, None if idle.

    Raises:
        SlotError: as `SlotOwner.bind`; another device's slot is foreign.
    """
    each, rest = divmod(lanes, max(1, len(owners)))
    if rest or not owners or len(slots) != lanes:
        counts = f"{len(slots)} slots for {lanes} lanes of {len(owners)} devices"
        message = f"expected one slot or None for each lane, and as many lanes on each device; got {counts}"
        raise SlotError(SlotFault.LANES.fault("", message))
    parts = (owner.bind(slots[k * each : (k + 1) * each], each) for k, owner in enumerate(owners))
    return frozen_copy(np.concatenate(list(parts)))
