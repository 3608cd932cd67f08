"""Read the device groups of a collective from any of XLA's encodings."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ir_passes.xla_audit import hlo_schema
from ir_passes.xla_audit.damage import HloError
from ir_passes.xla_audit.program import Groups

MAX_DEVICES = 1 << 20
"""Largest number of devices in a collective."""


def read_groups(raw: dict[str, Any]) -> Groups:
    """Return the device groups of a collective, from any of XLA's four encodings.

    Raises:
        HloError: the collective has no devices, or more than `MAX_DEVICES`.
    """
    if raw["pairs"]:
        return Groups(tuple((pair["source"], pair["target"]) for pair in raw["pairs"]))
    if raw["mesh_groups"]:
        mesh, axes = raw["mesh_groups"]["mesh"], raw["mesh_groups"]["axes"]
        if mesh is None or mesh["rest"] or any(axis["rest"] for axis in axes):
            return Groups((), readable=False)
        sizes = [axis["size"] for axis in mesh["axes"]]
        group_axes = [axis["index"] for axis in axes]
        return Groups(_mesh_groups(sizes, group_axes))
    devices = raw["devices"] or hlo_schema.DEVICE_LIST.blank
    if devices["iota"]:
        iota = devices["iota"]
        order = _devices(iota["reshape"])
        order = order.transpose(iota["transpose"] or None).reshape(iota["groups"], iota["devices"])
        return Groups(tuple(tuple(int(i) for i in row) for row in order))
    groups = devices["replica_groups"] or raw["replica_groups"]
    return Groups(tuple(group["replica_ids"] for group in groups) or ((),))


def _mesh_groups(sizes: list[int], axes: list[int]) -> tuple[tuple[int, ...], ...]:
    """Return the groups of devices of a row-major mesh that differ only along `axes`."""
    order = _devices(sizes)
    other_axes = [axis for axis in range(len(sizes)) if axis not in axes]
    rows = order.transpose(other_axes + axes).reshape(-1, math.prod(sizes[axis] for axis in axes))
    return tuple(tuple(int(i) for i in row) for row in rows)


def _devices(sizes: Sequence[int]) -> np.ndarray:
    """Return the positions of all devices of a row-major mesh."""
    if not 0 < math.prod(sizes) <= MAX_DEVICES:
        raise HloError(f"a collective has {math.prod(sizes)} devices; expected 1 to {MAX_DEVICES}")
    return np.arange(math.prod(sizes)).reshape(sizes)
