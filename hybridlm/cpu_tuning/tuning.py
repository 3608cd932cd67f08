"""Tuning of a loaded model: measure, choose, and add the chosen variants to its parameters."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from hybridlm.cpu_tuning.derived_params import TunedWeight, tuned_weight
from hybridlm.cpu_tuning.int8_head_choice import chosen_int8_head
from hybridlm.cpu_tuning.products import chosen_variants, describe_variants, large_products
from hybridlm.cpu_tuning.store import TimeStore
from hybridlm.devices.machine import Machine


@dataclass(frozen=True)
class Tuned:
    """Parameters of tuned steps, and the choices.

    Attributes:
        params: arrays, and weights with variants of their products, followed by the int8 head, if there is one.
        int8_head_lanes: numbers of lanes whose most likely tokens are found with it.
        int8_head_bytes: bytes of its int8 copy.
        choices: the variants that differ from the default, as text.
    """

    params: tuple[Any, ...]
    int8_head_lanes: frozenset[int]
    int8_head_bytes: int
    choices: str

    @property
    def weights(self) -> tuple[TunedWeight, ...]:
        """The weights with variants."""
        return tuple(one for one in self.params if isinstance(one, TunedWeight))


def check_tune(folder: Path | None, mesh: object | None, platform: str) -> None:
    """Check that the model can be tuned.

    Args:
        folder: storage of the times; None if there is none.
        mesh: of `load`.
        platform: that steps run on.

    Raises:
        ValueError: it cannot; lists all reasons.
    """
    faults: list[str] = []
    if platform != "cpu":
        faults.append(f"it measures variants for CPUs, and steps run on {platform}")
    if mesh is not None:
        faults.append("processes and devices of a mesh would measure different things, and mesh is not None")
    if folder is None:
        faults.append("what it measures is kept beside compiled steps, and compilation_cache names no local folder")
    if faults:
        raise ValueError(f"tune: expected False, got True: {'; '.join(faults)}")


def tune(
    params: tuple[jax.Array, ...],
    head: jax.Array | None,
    rows: Collection[int],
    lanes: Collection[int],
    folder: Path,
    room: int | None,
    progress: bool | None = None,
) -> Tuned:
    """Choose the fastest variants for a model on this machine; products without stored times are measured.

    Args:
        params: parameters of the model, flat.
        head: weight of the vocabulary head; None if an int8 head is not allowed.
        rows: row counts of the products of its steps.
        lanes: numbers of lanes of the steps that sample tokens alone.
        folder: storage of the times.
        room: bytes available for the int8 head; None for any number.
        progress: show a bar if anything is measured; None shows one if standard error is a terminal.
    """
    store = TimeStore(folder, Machine.here())
    variants = chosen_variants(large_products(params, rows), store, progress)
    tuned = tuple(tuned_weight(one, variants) for one in params)
    chosen = None if head is None else chosen_int8_head(head, lanes, store, room, progress)
    if chosen is None:
        return Tuned(tuned, frozenset(), 0, describe_variants(variants))
    return Tuned((*tuned, chosen.int8_head), chosen.lanes, chosen.bytes, describe_variants(variants))
