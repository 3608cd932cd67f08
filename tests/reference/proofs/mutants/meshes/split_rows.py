"""Rows of split pools read and written at wrong places."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec as P
from mutants.mutant import Evidence, Kind, Mutant, wrong
from zoo.meshes.sharded_rows import COPY_SPECS, SOURCE, SPLIT, TARGET, draw, here, local_copy, over, put
from zoo.program import slot_map

from ir_passes import LaneContract, Pool, SlotMap

COPIED, ADVANCED = "sharded rows copied", "sharded rows advanced"
LEAK, FAULT = Evidence.LEAK, Evidence.FAULT
MIXES = (Kind.COLLECTIVE,)
ROW = (Kind.WRONG_ROW,)
LARGER = LaneContract(
    inputs=(
        Pool("target"),
        Pool("source"),
        SlotMap("source", SOURCE, role="read"),
        SlotMap("target", SOURCE, role="write"),
    ),
    outputs=(Pool("target"),),
)


def draw_larger(rng: np.random.Generator) -> tuple[Any, ...]:
    target, source, read, _ = draw(rng)
    return target, source, read, slot_map(rng, slots=SOURCE)


def _nothing(pool: Array) -> int:
    return 0


def copy(
    read_less: Callable[[Array, Array], Array] = here,
    write_less: Callable[[Array, Array], Array] = here,
    total: Callable[[Array], Array] = lambda row: lax.psum(row, "data"),
    read: dict | None = None,
    write: dict | None = None,
) -> Callable[..., tuple[Array]]:
    """The copy of rows with some of its parts replaced."""
    fill = {"mode": "fill", "fill_value": 0, "wrap_negative_indices": False} | (read or {})
    drop = {"mode": "drop", "wrap_negative_indices": False} | (write or {})

    def local(target, source, reads, writes):
        row = total(source.at[read_less(reads, source)].get(**fill))
        return (target.at[write_less(writes, target)].set(row, **drop),)

    return local


def less(times: Callable[[Array], Array | int], axis: str = "data") -> Callable[[Array, Array], Array]:
    """Row numbers less this many rows for each device before."""
    return lambda rows, pool: rows - lax.axis_index(axis) * times(pool)


def summed_pool(target, source, read, write):
    """The rows of both devices are added up, to be found on each of them."""
    total = lax.psum(source, "data")
    return (put(target, write, total.at[read % total.shape[0]].get(mode="fill", fill_value=0)),)


def _copy(id: str, why: str, *kinds: Kind, leaks: bool = True, source_text: str = "JAX", **parts: Any) -> Mutant:
    step = over(copy(**parts), *COPY_SPECS, check_vma=False)
    return wrong(COPIED, id, source_text, why, step, *kinds, evidence=LEAK if leaks else FAULT)


MUTANTS = (
    _copy("row-of-each-device", "row s is read on every device, whosever it is there", *ROW, read_less=less(_nothing)),
    _copy("written-on-each-device", "row s is written on every device", *ROW, write_less=less(_nothing)),
    _copy("other-pools-rows", "the rows of the target's devices are subtracted from the source's", *ROW,
          read_less=less(lambda pool: TARGET // 2)),
    _copy("other-pools-rows-written", "the rows of the source's devices are subtracted from the target's", *ROW,
          write_less=less(lambda pool: SOURCE // 2)),
    _copy("place-along-another-axis", "a device takes its place among heads for that among rows", *ROW,
          read_less=less(lambda pool: pool.shape[0], "model")),
    _copy("row-beyond-clamped", "a row of another device is read as the nearest of this one", Kind.BOUNDS, *ROW,
          read={"mode": "clip", "fill_value": None}),
    _copy("write-beyond-clamped", "a row of another device is written to the nearest of this one", Kind.BOUNDS, *ROW,
          write={"mode": "clip"}),
    _copy("row-before-wraps", "a row of the device before is read from the end", *ROW,
          read={"wrap_negative_indices": True}),
    _copy("write-before-wraps", "a row of the device before is written to the end", *ROW,
          write={"wrap_negative_indices": True}),
    _copy("filled-with-one", "devices without a row give ones for it", *MIXES, leaks=False, read={"fill_value": 1}),
    _copy("filled-with-nan", "devices without a row give nan for it", *MIXES, leaks=False, read={"fill_value": None}),
    _copy("sum-left-out", "what a device has of a row is taken for the row", *MIXES, leaks=False, total=lambda row: row,
          source_text="SGLang#14811"),
    _copy("greatest-for-sum", "the greatest of a row and zeros is taken for it", *MIXES, leaks=False,
          total=lambda row: lax.pmax(row, "data")),
    _copy("mean-for-sum", "the mean of a row and zeros is taken for it", *MIXES, leaks=False,
          total=lambda row: lax.psum(row / 2, "data")),
    _copy("summed-over-heads", "a row is summed over the devices that have its heads", *MIXES, leaks=False,
          total=lambda row: lax.psum(row, "model")),
    wrong(COPIED, "lanes-split-too", "JAX", "lanes are split over the devices that split rows, and their rows added up",
          over(local_copy, SPLIT, SPLIT, P("data"), P("data"), (SPLIT,), check_vma=False), *MIXES),
    wrong(COPIED, "pools-added-up", "JAX", "all rows of a pool are added to those of the other device",
          over(summed_pool, *COPY_SPECS), *MIXES, *ROW),
    wrong(COPIED, "rows-leave-as-heads", "SGLang#22060", "rows come back where heads should, and heads as rows",
          over(local_copy, *COPY_SPECS[:-1], (P("model", "data"),), check_vma=False), *MIXES),
    wrong(COPIED, "devices-have-fewer-rows", "tpu-inference#3565", "the host hands out more rows than devices have",
          over(local_copy, *COPY_SPECS), Kind.BOUNDS, contract=LARGER, draw=draw_larger, evidence=FAULT),
)  # fmt: skip
