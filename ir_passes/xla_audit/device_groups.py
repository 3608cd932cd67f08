"""The groups of devices of a collective, from any of XLA's encodings."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ir_passes.xla_audit import hlo_schema
from ir_passes.xla_audit.damage import HloError
from ir_passes.xla_audit.program import Groups

MAX_DEVICES = 1 << 20
"""Most devices of a collective."""


def read_groups(raw: dict[str, Any]) -> Groups:
    """Return the groups of devices of a collective, from any of its four encodings."""
    if raw["pairs"]:
        return Groups(tuple((one["source"], one["target"]) for one in raw["pairs"]))
    if raw["mesh_groups"]:
        mesh, axes = raw["mesh_groups"]["mesh"], raw["mesh_groups"]["axes"]
        if mesh is None or mesh["rest"] or any(one["rest"] for one in axes):
            return Groups((), readable=False)
        sizes = [one["size"] for one in mesh["axes"]]
        inside = [one["index"] for one in axes]
        return Groups(_mesh_groups(sizes, inside))
    devices = raw["devices"] or hlo_schema.DEVICE_LIST.blank
    if devices["iota"]:
        iota = devices["iota"]
        order = _devices(iota["reshape"])
        order = order.transpose(iota["transpose"] or None).reshape(iota["groups"], iota["devices"])
        return Groups(tuple(tuple(int(i) for i in row) for row in order))
    listed = devices["replica_groups"] or raw["replica_groups"]
    return Groups(tuple(one["replica_ids"] for one in listed) or ((),))


def _mesh_groups(sizes: list[int], inside: list[int]) -> tuple[tuple[int, ...], ...]:
    """Devices of a row-major mesh that differ along the axes `inside` alone."""
    order = _devices(sizes)
    outside = [axis for axis in range(len(sizes)) if axis not in inside]
    rows = order.transpose(outside + inside).reshape(-1, math.prod(sizes[axis] for axis in inside))
    return tuple(tuple(int(i) for i in row) for row in rows)


def _devices(sizes: Sequence[int]) -> np.ndarray:
    """Return the positions of all devices of a row-major mesh."""
    if not 0 < math.prod(sizes) <= MAX_DEVICES:
        raise HloError(f"a collective has {math.prod(sizes)} devices; expected 1 to {MAX_DEVICES}")
    return np.arange(math.prod(sizes)).reshape(sizes)
