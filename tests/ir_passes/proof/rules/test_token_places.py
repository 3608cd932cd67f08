"""Tokens at places are read in their lane alone; steps that reach beyond it are refused and differ."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from ir_passes import IsolationError, Lane, LaneContract, Packed, PageTable, Pool, prove_isolation

LANES, TOKENS, WIDTH, ROWS = 3, 8, 2, 9
LAYOUTS = [0, 3, 5, 7], [0, 1, 2, 8], [0, 2, 2, 6], [0, 8, 8, 8], [0, 6, 7, 8]
Array = Any
Step = Callable[[Array, Array], Array]
TOKEN, BACK, PLACE = jnp.arange(TOKENS), jnp.arange(3)[None], jnp.arange(4)[None]
LONGER = jnp.arange(TOKENS + 2)


def start(cu: Array) -> Array:
    return cu[jnp.clip(jnp.sum(cu[None] <= TOKEN[:, None], axis=1) - 1, 0, LANES - 1)]


def moved(x: Array, by: int) -> Array:
    return jnp.pad(x, ((max(by, 0), max(-by, 0)), (0, 0)))[max(-by, 0) :][:TOKENS]


def masked(mask: Array, x: Array) -> Array:
    return jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim)), x, 0.0)


def windows(slope: int, masked_slope: int, by: int = 0) -> Step:
    """Return a step that sums tokens t - `slope` * k where t - `masked_slope` * k + `by` is in the lane."""

    def step(x, cu):
        rows = x[jnp.clip(TOKEN[:, None] - slope * BACK, 0, TOKENS - 1)]
        return masked(TOKEN[:, None] - masked_slope * BACK + by >= start(cu)[:, None], rows).sum(1)

    return step


def concatenated(slope: int, masked_slope: int, by: int = 0, pairs: bool = False) -> Step:
    """Return `windows` by a concatenation; `pairs`: of sums of a token and the one before it."""

    def step(x, cu):
        shifted = [moved(x, slope * k) + (moved(x, slope * k + 1) if pairs else 0.0) for k in range(3)]
        rows = jnp.concatenate([row[:, None] for row in shifted], 1)
        return masked(TOKEN[:, None] - masked_slope * BACK + by >= start(cu)[:, None], rows).sum(1)

    return step


def part_of_windows(mask: int, rows: int) -> Step:
    """Return windows of five tokens from `rows`, where a part of a mask without windows is true."""

    def step(x, cu):
        windows = x[jnp.clip((jnp.arange(5) + rows)[:, None] - BACK, 0, TOKENS - 1)]
        selected = masked((TOKEN - 2 >= start(cu))[mask : mask + 5][:, None], windows).sum(1)
        return jnp.pad(selected, ((rows, 3 - rows), (0, 0)))

    return step


def sums(mask: Callable[[Array], Array]) -> Step:
    """Return a step that sums each lane's tokens by a mask [lanes, tokens]."""
    return lambda x, cu: masked(mask(cu), jnp.broadcast_to(x[None], (LANES, TOKENS, WIDTH))).sum(1)


def between(token: Array, cu: Array) -> Array:
    return (token[None] >= cu[:-1, None]) & (token[None] < cu[1:, None])


def tiles(place: Callable[[Array], Array], stops: Callable[[Array], Array] = lambda cu: cu[1:]) -> Step:
    """Return a step that sums the tokens at places [lanes, n] before a stop of each lane."""

    def step(x, cu):
        return masked(place(cu) < stops(cu)[:, None], x[jnp.clip(place(cu), 0, TOKENS - 1)]).sum(1)

    return step


def mapped(reverse: bool) -> Step:
    """Return a step that sums each lane's tokens in a loop over masks and places of lanes."""

    def step(x, cu):
        places = cu[:-1, None] + PLACE
        mask = places < cu[1:, None]
        mask = mask[::-1] if reverse else mask
        return lax.map(lambda lane: masked(lane[0], x[jnp.clip(lane[1], 0, TOKENS - 1)]).sum(0), (mask, places))

    return step


def all_places(cu: Array) -> Array:
    return cu[:, None] + PLACE


RIGHT: dict[str, tuple[Step, Any]] = {
    "windows": (windows(1, 1), Packed()),
    "windows, mask with a margin": (windows(2, 1, -2), Packed()),
    "windows, mask of one distance": (windows(1, 0, -2), Packed()),
    "concatenated": (concatenated(1, 1), Packed()),
    "concatenated, every second": (concatenated(2, 2), Packed()),
    "concatenated pairs": (concatenated(1, 1, -1, True), Packed()),
    "part of windows": (part_of_windows(1, 1), Packed()),
    "part of a sum, from its first": (tiles(lambda cu: (cu[:-1, None] + jnp.arange(6)[None])[:, :4]), Lane()),
    "part of a sum, from a later place": (tiles(lambda cu: (cu[:-1, None] + jnp.arange(6)[None])[:, 2:]), Lane()),
    "part of a sum, without the last bound": (tiles(lambda cu: all_places(cu)[:-1]), Lane()),
    "part of a mask": (sums(lambda cu: between(LONGER - 2, cu)[:, 2:]), Lane()),
    "parts of masks of bounds": (
        sums(lambda cu: (TOKEN[None] >= cu[:, None])[:-1] & (TOKEN[None] < cu[:, None])[1:]), Lane()),
    "a loop over masks": (mapped(False), Lane()),
}  # fmt: skip
WRONG: dict[str, tuple[Step, Any]] = {
    "windows in the opposite order": (windows(-1, 1), Packed()),
    "windows, twice as far": (windows(2, 1), Packed()),
    "windows, margin too small": (windows(2, 1, -1), Packed()),
    "windows, one before the start": (windows(1, 1, 1), Packed()),
    "windows, mask of one shorter distance": (windows(1, 0, -1), Packed()),
    "concatenated in the opposite order": (concatenated(-1, 1), Packed()),
    "concatenated, twice as far": (concatenated(2, 1), Packed()),
    "concatenated pairs, one too far": (concatenated(1, 1, 0, True), Packed()),
    "part of windows, other tokens": (part_of_windows(2, 1), Packed()),
    "part of a sum, to the next lane's end": (
        tiles(lambda cu: all_places(cu)[:-1], lambda cu: jnp.roll(cu[1:], -1)), Lane()),
    "part of a mask, two tokens before": (sums(lambda cu: between(LONGER - 2, cu)[:, :TOKENS]), Lane()),
    "part of a mask, two tokens after": (sums(lambda cu: between(LONGER, cu)[:, 2:]), Lane()),
    "a loop over masks of other lanes": (mapped(True), Lane()),
}  # fmt: skip


def reaches_another_lane(step: Step, of_lanes: bool) -> bool:
    """Compare outputs after the tokens of one lane become NaN."""
    step = jax.jit(step)
    x = np.random.default_rng(0).normal(size=(TOKENS, WIDTH)).astype(np.float32)
    for cu in np.array(LAYOUTS, np.int32):
        token_lanes = np.searchsorted(cu[1:], np.arange(TOKENS), side="right")
        row_lanes = np.arange(LANES) if of_lanes else token_lanes
        for lane in range(LANES):
            changed = np.where((token_lanes == lane)[:, None], np.float32(np.nan), x)
            others = (row_lanes != lane) & (row_lanes < LANES)
            if np.asarray(step(x, cu))[others].tobytes() != np.asarray(step(changed, cu))[others].tobytes():
                return True
    return False


@pytest.mark.parametrize("name", RIGHT)
def test_tokens_at_places_in_their_lane_are_proved(name: str) -> None:
    step, output = RIGHT[name]
    assert not reaches_another_lane(step, output == Lane())
    args = jnp.ones((TOKENS, WIDTH)), jnp.asarray(LAYOUTS[0])
    assert prove_isolation(step, args, LaneContract((Packed(), Packed(role="cu_seqlens")), output)).lanes == LANES


@pytest.mark.parametrize("name", WRONG)
def test_tokens_at_places_of_other_lanes_are_refused(name: str) -> None:
    step, output = WRONG[name]
    assert reaches_another_lane(step, output == Lane())
    args = jnp.ones((TOKENS, WIDTH)), jnp.asarray(LAYOUTS[0])
    with pytest.raises(IsolationError):
        prove_isolation(step, args, LaneContract((Packed(), Packed(role="cu_seqlens")), output))


@pytest.mark.parametrize(("raised", "is_proved"), [(ROWS, True), (2 * ROWS, True), (1, False), (ROWS - 1, False)])
@pytest.mark.parametrize("exchanged", [False, True])
def test_pages_raised_past_the_pool_are_not_read(raised: int, is_proved: bool, exchanged: bool) -> None:
    def step(pool, mask, table, rows):
        pages = jnp.where(mask[:, None], table, jnp.iinfo(jnp.int32).min)
        cases = (pages + raised, pages) if exchanged else (pages, pages + raised)
        places = jnp.where(rows[:, :1] > 0, *cases)
        return pool.at[places].get(mode="fill", fill_value=0.0, wrap_negative_indices=False)

    args = jnp.ones((ROWS, WIDTH)), jnp.ones(LANES, bool), jnp.ones((LANES, 2), jnp.int32), jnp.ones((LANES, WIDTH))
    contract = LaneContract((Pool("s"), Lane(), PageTable("s", ROWS), Lane()), Lane())
    if is_proved:
        assert prove_isolation(step, args, contract).lanes == LANES
    else:
        with pytest.raises(IsolationError):
            prove_isolation(step, args, contract)
