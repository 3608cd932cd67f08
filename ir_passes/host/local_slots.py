"""Row numbers of a step split over devices, each with an owner of its rows."""

from collections.abc import Sequence

import numpy as np

from ir_passes.host.slot_owner import Slot, SlotError, SlotFault, SlotOwner, frozen_copy


def bind_local(owners: Sequence[SlotOwner], slots: Sequence[Slot | None], lanes: int) -> np.ndarray:
    """Return the row numbers of a step split over devices, int32 [lanes].

    Each device numbers its rows separately, as `SlotMap(..., local=axis)` declares, and has an owner of them: lane i
    uses a row of owner `i // (lanes // len(owners))`.

    Args:
        owners: one for each device along the mesh axis, in its order.
        slots: one for each lane, None for an idle lane.
        lanes: lanes of the step, the same number on each device.

    Raises:
        SlotError: as `SlotOwner.bind`; a slot of another device's owner is a foreign slot.
    """
    each, rest = divmod(lanes, max(1, len(owners)))
    if rest or not owners or len(slots) != lanes:
        counts = f"{len(slots)} slots for {lanes} lanes of {len(owners)} devices"
        message = f"expected one slot or None for each lane, and as many lanes on each device; got {counts}"
        raise SlotError(SlotFault.LANES.fault("", message))
    parts = (owner.bind(slots[k * each : (k + 1) * each], each) for k, owner in enumerate(owners))
    return frozen_copy(np.concatenate(list(parts)))
