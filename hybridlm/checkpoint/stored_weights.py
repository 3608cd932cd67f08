"""Stored weights of a checkpoint: scheme, size, and signs of damage."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hybridlm.checkpoint.directory import CheckpointDirectory
from hybridlm.checkpoint.header_check import READ
from hybridlm.errors import CheckpointError
from hybridlm.quantised.health import clipped_groups, lost_rows, zero_rows


@dataclass(frozen=True)
class StoredWeight:
    """One weight of a checkpoint.

    Attributes:
        name: as if it were stored plainly.
        stored_as: dtype or quantisation scheme.
        bytes: codes and scales together.
        not_finite: NaN or infinite numbers.
        zero_rows, clipped_groups: of a matrix; None for another weight.
        lost: rows of zeros where they are many (see `lost_rows`).
    """

    name: str
    stored_as: str
    shape: tuple[int, ...]
    bytes: int
    not_finite: int = 0
    zero_rows: int | None = None
    clipped_groups: int | None = None
    lost: int = 0


def stored_weights(checkpoint: CheckpointDirectory) -> Iterator[StoredWeight]:
    """Yield the weights by name, each read on demand.

    Raises:
        CheckpointError: tensors that make no weight, or scales and codes that are not finite.
    """
    faults = [f"{name}: {fault}" for name, fault in checkpoint.grouped.faults.items()]
    if faults:
        raise CheckpointError(checkpoint.path, faults)
    for name in sorted(checkpoint.names):
        quantised, shape = checkpoint.grouped.quantised.get(name), checkpoint.shape(name)
        stored = checkpoint.stored_as(name)
        size = quantised.bytes if quantised else checkpoint.info(name).end - checkpoint.info(name).begin
        if not all(shape) or (quantised is None and stored not in READ):
            yield StoredWeight(name, stored, shape, size)
            continue
        weight = checkpoint.read(name)
        wrong = weight.size - int(np.count_nonzero(np.isfinite(weight)))
        signs = ()
        if len(shape) >= 2:
            group = quantised.group if quantised else None
            signs = zero_rows(weight), clipped_groups(weight, group), lost_rows(weight)
        yield StoredWeight(name, stored, shape, size, wrong, *signs)
        del weight
        checkpoint.release(name)
