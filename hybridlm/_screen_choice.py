"""For how many lanes a screen of the head is faster than all logits, measured when a model is loaded first."""

import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from hybridlm._form_store import FormStore
from hybridlm._machine import Machine
from hybridlm._product_forms import GAIN, LARGE, keep_times
from hybridlm._product_times import ROUNDS
from hybridlm._progress import counting_progress
from hybridlm._screened_head import MOST_LANES, Screen, can_screen, copy_bytes, most_likely_screened, screen_of
from hybridlm._words import words_of
from models.linear import SCREENED, Product

GAIN_FOR_COPY = 1.25
"""So many times as fast the search has to be for one number of lanes: the copy takes half of what the head takes. Where
there is one, GAIN decides for the others."""

_log = logging.getLogger("hybridlm")


class Screened(NamedTuple):
    """A screen, and where it is used.

    Attributes:
        screen: of the head.
        lanes: numbers of lanes.
    """

    screen: Screen
    lanes: frozenset[int]

    @property
    def bytes(self) -> int:
        """Of the narrow copy."""
        _, *copy = self.screen
        return sum(one.nbytes for one in copy)


def chosen_screen(
    head: jax.Array, lanes: Iterable[int], directory: Path, room: int | None, progress: bool | None = None
) -> Screened | None:
    """The screen of a head, where finding the most likely tokens with it is faster than their logits.

    Args:
        head: of the vocabulary.
        lanes: numbers of lanes that steps have. One for which the head's own product has not been measured has none.
        directory: of the `FormStore` that has these times.
        room: bytes that the narrow copy may take; None for any number.
        progress: show a bar if anything is measured; None shows one where standard error is a terminal.

    Returns:
        None where it is faster for no number of lanes, or has no room.
    """
    words = words_of(head) if can_screen(head) and head.size >= LARGE else None
    if words is None:
        return None
    if room is not None and copy_bytes(head) > room:
        _log.info("no narrow copy of the head: its %d bytes are more than the %d left", copy_bytes(head), room)
        return None
    store = FormStore(directory, Machine.here())
    counts = sorted(count for count in set(lanes) if count <= MOST_LANES)
    all_logits = {
        count: min(found.values()) for count in counts if (found := store.find(Product.of(count, head))) is not None
    }
    vocab, hidden = head.shape
    products = {count: Product(count, vocab, hidden, "int8") for count in all_logits}
    times = {count: found[SCREENED] for count, one in products.items() if (found := store.find(one)) is not None}
    missing, screen = [count for count in products if count not in times], None
    if missing:
        screen = screen_of(words)
        with counting_progress(progress, "measuring the head", len(missing)) as done:
            for index, count in enumerate(missing):
                times[count] = _seconds(count, screen)
                keep_times(store, products[count], {SCREENED: times[count]})
                done(index + 1, f"{count} lanes")
    gains = {count: all_logits[count] / seconds for count, seconds in times.items()}
    if max(gains.values(), default=0.0) <= GAIN_FOR_COPY:
        return None
    screen = screen_of(words) if screen is None else screen
    if not bool(jnp.isfinite(screen.radius).all()):
        _log.info("no narrow copy of the head: some of its numbers are not finite")
        return None
    return Screened(screen, frozenset(count for count, gain in gains.items() if gain > GAIN))


def _seconds(lanes: int, screen: Screen) -> float:
    """The least time in which the most likely tokens of so many lanes are found, for independent normal numbers."""
    asked = jnp.ones(lanes, bool)
    inputs = list(jax.random.normal(jax.random.key(0), (ROUNDS, lanes, screen.codes.shape[1])))
    program = jax.jit(most_likely_screened).lower(inputs[0], asked, screen).compile()
    times = []
    for one in inputs:
        start = time.perf_counter()
        jax.block_until_ready(program(one, asked, screen))
        times.append(time.perf_counter() - start)
    return min(times)
