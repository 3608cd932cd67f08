"""The weights of a checkpoint as its files store them: scheme, size, and signs of damage."""

from collections.abc import Iterator
from dataclasses import dataclass

from hybridlm.checkpoint.directory import CheckpointDirectory
from hybridlm.checkpoint.safetensors import READABLE
from hybridlm.errors import CheckpointError
from hybridlm.quantised.health import WeightHealth, lost_rows, weight_health


@dataclass(frozen=True)
class StoredWeight:
    """One weight of a checkpoint.

    Attributes:
        name: as if it were stored plainly.
        stored_as: its dtype, or the scheme that it is quantised by.
        shape: of the weight.
        bytes: of codes and scales together.
        health: of matrices; None for other weights.
        lost: rows of zeros where they are many (see `lost_rows`).
    """

    name: str
    stored_as: str
    shape: tuple[int, ...]
    bytes: int
    health: WeightHealth | None
    lost: int


def stored_weights(checkpoint: CheckpointDirectory) -> Iterator[StoredWeight]:
    """Yield the weights by name, each read when it is asked for.

    Raises:
        CheckpointError: tensors that make no weight, or numbers that are not finite.
    """
    faults = [f"{name}: {fault}" for name, fault in checkpoint.grouped.faults.items()]
    if faults:
        raise CheckpointError(checkpoint.path, faults)
    for name in sorted(checkpoint.names):
        quantised, shape = checkpoint.grouped.quantised.get(name), checkpoint.shape(name)
        stored = checkpoint.stored_as(name)
        size = quantised.bytes if quantised else checkpoint.info(name).end - checkpoint.info(name).begin
        if len(shape) < 2 or not all(shape) or (quantised is None and stored not in READABLE):
            yield StoredWeight(name, stored, shape, size, None, 0)
            continue
        weight = checkpoint.read(name)
        health = weight_health(weight, quantised.group if quantised else None)
        yield StoredWeight(name, stored, shape, size, health, lost_rows(weight))
        del weight
        checkpoint.release(name)
