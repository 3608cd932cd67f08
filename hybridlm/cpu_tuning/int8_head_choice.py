"""Choice of the numbers of lanes for which the int8 head is faster than all logits, measured once and stored."""

import logging
import time
from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from hybridlm.cpu_tuning.packed_u32 import packed_u32
from hybridlm.cpu_tuning.product_times import ROUNDS
from hybridlm.cpu_tuning.products import MIN_ELEMENTS, MIN_GAIN
from hybridlm.cpu_tuning.store import TimeStore
from hybridlm.cpu_tuning.variants import INT8_HEAD, Product
from hybridlm.progress import counting_progress
from hybridlm.sampling.int8_head import (
    MAX_LANES,
    Int8Head,
    build_int8_head,
    int8_copy_bytes,
    most_likely_by_int8_head,
    supports_int8_head,
)

MIN_GAIN_FOR_COPY = 1.25
"""Minimum speed-up for at least one number of lanes: the copy takes half of the head's memory. If there is a copy,
MIN_GAIN decides for the other numbers."""

_log = logging.getLogger("hybridlm")


class ChosenInt8Head(NamedTuple):
    """An int8 head, and the numbers of lanes it is used for.

    Attributes:
        int8_head: arrays of the search.
        lanes: numbers of lanes.
    """

    int8_head: Int8Head
    lanes: frozenset[int]

    @property
    def bytes(self) -> int:
        """Bytes of the int8 copy."""
        _, *copy = self.int8_head
        return sum(one.nbytes for one in copy)


def chosen_int8_head(
    head: jax.Array, lanes: Iterable[int], store: TimeStore, room: int | None, progress: bool | None = None
) -> ChosenInt8Head | None:
    """Return the int8 head of a vocabulary, if it finds the most likely tokens faster than all logits.

    Args:
        head: weight of the vocabulary head.
        lanes: numbers of lanes of the steps. Those for which the head's own product has not been measured are left out.
        store: store of times.
        room: bytes available for the copy; None for any number.
        progress: show a bar if anything is measured; None shows one if standard error is a terminal.

    Returns:
        None if it is faster for no number of lanes, or has no room.
    """
    packed = packed_u32(head) if supports_int8_head(head) and head.size >= MIN_ELEMENTS else None
    if packed is None:
        return None
    if room is not None and int8_copy_bytes(head) > room:
        _log.info("no int8 copy of the head: its %d bytes are more than the %d left", int8_copy_bytes(head), room)
        return None
    counts = sorted(count for count in set(lanes) if count <= MAX_LANES)
    all_logits = {
        count: min(found.values()) for count in counts if (found := store.find(Product.of(count, head))) is not None
    }
    vocab, hidden = head.shape
    products = {count: Product(count, vocab, hidden, "int8") for count in all_logits}
    times = {count: found[INT8_HEAD] for count, one in products.items() if (found := store.find(one)) is not None}
    missing, int8_head = [count for count in products if count not in times], None
    if missing:
        store.announce(f"the int8 head for {len(missing)} numbers of lanes")
        int8_head = build_int8_head(packed)
        with counting_progress(progress, "measuring the head", len(missing)) as done:
            for index, count in enumerate(missing):
                times[count] = _seconds(count, int8_head)
                store.keep(products[count], {INT8_HEAD: times[count]})
                done(index + 1, f"{count} lanes")
    gains = {count: all_logits[count] / seconds for count, seconds in times.items()}
    if max(gains.values(), default=0.0) <= MIN_GAIN_FOR_COPY:
        return None
    int8_head = build_int8_head(packed) if int8_head is None else int8_head
    if not bool(jnp.isfinite(int8_head.radius).all()):
        _log.info("no int8 copy of the head: some of its numbers are not finite")
        return None
    return ChosenInt8Head(int8_head, frozenset(count for count, gain in gains.items() if gain > MIN_GAIN))


def _seconds(lanes: int, int8_head: Int8Head) -> float:
    """Return the minimum time of finding the most likely tokens for independent normal inputs."""
    asked = jnp.ones(lanes, bool)
    inputs = list(jax.random.normal(jax.random.key(0), (ROUNDS, lanes, int8_head.codes.shape[1])))
    program = jax.jit(most_likely_by_int8_head).lower(inputs[0], asked, int8_head).compile()
    times = []
    for one in inputs:
        start = time.perf_counter()
        jax.block_until_ready(program(one, asked, int8_head))
        times.append(time.perf_counter() - start)
    return min(times)
