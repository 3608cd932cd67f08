"""Three forms of the gated delta rule agree for all lengths and touch nothing else."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_mutants.layers import MUTANTS
from recurrence_cases import (
    FORMS,
    check,
    check_equation,
    check_gradients,
    check_idle_lane,
    check_single_tokens,
    delta_rule_reference,
    on_arrays,
)
from recurrence_cases import inputs as recurrence_lanes

from models import Devices
from models.ops.recurrences.delta_rule import delta_rule, delta_rule_chunked, delta_rule_step

KERNEL, CHUNK = 4, 8
LENGTHS = (1, KERNEL - 1, KERNEL, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5)
# form with a decay per channel: its chunks are powers of two
CHANNEL_CHUNK = 32
CHANNEL_LENGTHS = (1, KERNEL - 1, KERNEL, CHANNEL_CHUNK - 1, CHANNEL_CHUNK, CHANNEL_CHUNK + 1, 3 * CHANNEL_CHUNK + 5)
HEADS, KEY, VALUE = 3, 5, 7
FAULTS = {mutant.id: mutant for mutant in MUTANTS}
# float32 rounding over at most 29 tokens of unit-length keys
TOLERANCE = 2e-5
# no lane is fresh
OLD = np.zeros(16, bool)

chunked = jax.jit(on_arrays(delta_rule_chunked, chunk=CHUNK))
channel_chunked = jax.jit(on_arrays(delta_rule_chunked, chunk=CHANNEL_CHUNK))
compiled = jax.jit(on_arrays(delta_rule_chunked, chunk=CHUNK, keep_state=True))
channel_kept = jax.jit(on_arrays(delta_rule_chunked, chunk=CHANNEL_CHUNK, keep_state=True))
reference = jax.jit(on_arrays(delta_rule_reference))
PLATFORMS = pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
PER_HEAD_AND_PER_CHANNEL = pytest.mark.parametrize("channels", [False, True], ids=["head", "channel"])


def inputs(
    lengths: tuple[int, ...], seed: int = 0, channels: bool = False
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Random lanes with decay per head or key channel; padding is NaN and infinity."""
    rng = np.random.default_rng(seed)
    lanes, tokens = len(lengths), max(max(lengths), 1)
    valid = np.arange(tokens)[None] < np.array(lengths)[:, None]
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)
    query, key = (unit(rng.normal(size=(lanes, tokens, HEADS, KEY))) for _ in range(2))
    value = rng.normal(size=(lanes, tokens, HEADS, VALUE))
    log_decay = -rng.exponential(0.3, size=(lanes, tokens, HEADS, KEY) if channels else (lanes, tokens, HEADS))
    beta = rng.uniform(0.05, 0.98, size=(lanes, tokens, HEADS))
    arrays = []
    for i, x in enumerate((query, key, value, log_decay, beta)):
        x[~valid] = np.nan if i % 2 else np.inf
        arrays.append(x.astype(np.float32))
    return arrays, rng.normal(size=(lanes, HEADS, VALUE, KEY)).astype(np.float32), valid


def float64(arrays: list[np.ndarray], state: np.ndarray, length: int, lane: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute one lane by the equation, in float64."""
    q, k, v, g, b = (x.astype(np.float64)[lane] for x in arrays)
    s = state.astype(np.float64)[lane]
    outs = []
    for t in range(length):
        s *= np.exp(g[t]).reshape((HEADS, 1, -1))
        for h in range(HEADS):
            s[h] += np.outer(b[t, h] * (v[t, h] - s[h] @ k[t, h]), k[t, h])
        outs.append(np.stack([s[h] @ q[t, h] for h in range(HEADS)]))
    return np.array(outs).reshape(length, HEADS, VALUE), s


@pytest.mark.each_value
@pytest.mark.parametrize("form", [chunked, compiled, reference], ids=["chunked", "kept", "reference"])
# Tokens per step; every step has lanes of all the shorter lengths too.
@pytest.mark.parametrize(
    "longest", [pytest.param(n, marks=[pytest.mark.long] if 1 < n < CHUNK else []) for n in LENGTHS]
)
def test_equals_the_equation_in_float64(form, longest: int) -> None:
    lengths = tuple(n for n in LENGTHS if n <= longest) + (0,)
    check_equation(form, float64, lengths, inputs(lengths, seed=longest), TOLERANCE)


@pytest.mark.parametrize("form", [channel_chunked, channel_kept, reference], ids=["chunked", "kept", "reference"])
def test_decay_per_channel_equals_the_equation_in_float64(form) -> None:
    lengths = (*CHANNEL_LENGTHS, 0)
    check_equation(form, float64, lengths, inputs(lengths, channels=True), TOLERANCE)


@pytest.mark.parametrize(("chunk", "keep_state", "channels"), [(CHUNK, True, False), (CHANNEL_CHUNK, False, True)])
def test_outputs_in_place_of_values_equal_the_equation(chunk: int, keep_state: bool, channels: bool) -> None:
    form = jax.jit(on_arrays(delta_rule_chunked, "gpu", chunk=chunk, keep_state=keep_state))
    check_equation(form, float64, (*LENGTHS, 0), inputs((*LENGTHS, 0), channels=channels), TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("id", ["", *FAULTS])
def test_a_fault_of_the_chunks_is_seen_where_the_last_is_filled_up(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = (CHUNK, CHUNK + 3, 2, 0)
    arrays, state, valid = inputs(lengths)
    _, want = jax.device_get(reference(*arrays, state, valid, OLD[: len(lengths)]))
    if id:
        FAULTS[id].fault(monkeypatch)
    operands = map(jnp.asarray, (*arrays, state, valid, OLD[: len(lengths)]))
    _, result = on_arrays(delta_rule_chunked, chunk=CHUNK)(*operands)
    wrong = [not np.allclose(result[lane], want[lane], atol=TOLERANCE, rtol=0) for lane in range(len(lengths))]
    assert wrong == [bool(id) and length % CHUNK > 0 for length in lengths]


@pytest.mark.each_value
@PER_HEAD_AND_PER_CHANNEL
@PLATFORMS
def test_one_token_at_a_time_equals_all_at_once(channels: bool, platform: str) -> None:
    check_single_tokens(
        jax.jit(on_arrays(delta_rule_step, platform)), reference, inputs((13, 5, 0), channels=channels), TOLERANCE
    )


@pytest.mark.each_value
@pytest.mark.parametrize("tokens", [1, 2, CHUNK + 3])
@PER_HEAD_AND_PER_CHANNEL
@PLATFORMS
def test_an_idle_lane_keeps_its_bits_and_its_neighbours_do_not_see_it(tokens: int, channels: bool, platform: str):
    check_idle_lane(jax.jit(on_arrays(delta_rule, platform)), inputs((tokens, 0, tokens), channels=channels))


@pytest.mark.each_value
@PER_HEAD_AND_PER_CHANNEL
@pytest.mark.parametrize("tokens", [1, CHUNK + 3])
@pytest.mark.parametrize("form", [delta_rule, delta_rule_reference])
@PLATFORMS
def test_a_fresh_lane_does_not_read_its_old_state(form, tokens: int, channels: bool, platform: str) -> None:
    arrays, state, valid = inputs((tokens, tokens, 0), channels=channels)
    stale = state.copy()
    stale[0] = np.nan
    stale[0, 0, 0, :2] = np.inf, -0.0
    state[0] = 0.0
    run = jax.jit(on_arrays(form, platform))
    want_out, want_new = jax.device_get(run(*arrays, state, valid, OLD[:3]))
    out, new = jax.device_get(run(*arrays, stale, valid, np.array([True, False, False])))
    np.testing.assert_array_equal(out, want_out)
    np.testing.assert_array_equal(new, want_new)


@pytest.mark.each_value
@pytest.mark.slow
@PER_HEAD_AND_PER_CHANNEL
@pytest.mark.parametrize("keep_state", [False, True])
def test_only_the_first_of_several_chunks_begins_from_zero(keep_state: bool, channels: bool) -> None:
    chunk = CHANNEL_CHUNK if channels else CHUNK
    arrays, state, valid = inputs((3 * chunk, chunk + 3, 0), channels=channels)
    state[:2] = np.nan
    form = jax.jit(on_arrays(delta_rule_chunked, chunk=chunk, keep_state=keep_state))
    out, new = jax.device_get(form(*arrays, state, valid, np.array([True, True, False])))
    state[:2] = 0.0
    for lane, length in enumerate((3 * chunk, chunk + 3, 0)):
        want_out, want_state = float64(arrays, state, length, lane)
        np.testing.assert_allclose(out[lane, :length], want_out, atol=TOLERANCE, rtol=0)
        np.testing.assert_allclose(new[lane], want_state, atol=TOLERANCE, rtol=0)


def test_correlated_keys_and_strong_writes_stay_exact() -> None:
    """Here a product of powers of the chunk's system loses all digits."""
    arrays, state, valid = inputs((64,))
    query, key, value, log_decay, beta = arrays
    key = np.broadcast_to(key[:, :1], key.shape)
    arrays = [query, key, value, np.float32(0.001) * log_decay, np.full_like(beta, 0.999)]
    want_out, want_state = float64(arrays, state, 64, 0)
    form = jax.jit(on_arrays(delta_rule_chunked, chunk=64))
    out, new = jax.device_get(form(*arrays, state, valid, OLD[: len(valid)]))
    np.testing.assert_allclose(out[0], want_out, atol=1e-4, rtol=0)
    np.testing.assert_allclose(new[0], want_state, atol=1e-4, rtol=0)


@pytest.mark.slow
@PER_HEAD_AND_PER_CHANNEL
def test_strong_decay_stays_finite_and_exact(channels: bool) -> None:
    """Chunk sums that could overflow, and weak decays right after strong ones."""
    arrays, state, valid = inputs((64,), channels=channels)
    log_decay = arrays[3] * np.float32(0.1)
    log_decay[:, 5::7] = -60.0
    log_decay[:, 20, :2] = -80.0
    arrays[3] = log_decay
    want_out, want_state = float64(arrays, state, 64, 0)
    form = jax.jit(on_arrays(delta_rule_chunked, chunk=64))
    out, new = jax.device_get(form(*arrays, state, valid, OLD[: len(valid)]))
    # a sum of decays is about 600 at the end of the chunk, and known to half a last place of that
    np.testing.assert_allclose(out[0], want_out, atol=1e-4, rtol=0)
    np.testing.assert_allclose(new[0], want_state, atol=1e-4, rtol=0)


@pytest.mark.slow
@PER_HEAD_AND_PER_CHANNEL
def test_gradients_of_the_chunked_form_match_the_reference(channels: bool) -> None:
    check_gradients(channel_chunked if channels else chunked, reference, inputs((11, 4), channels=channels))


@PLATFORMS
@pytest.mark.parametrize("form", FORMS[:2])
def test_rows_by_slot_are_read_and_written_alone(form: str, platform: str) -> None:
    """NaN in an idle lane, a fresh lane's old row and rows of other sequences has no effect."""
    lanes = recurrence_lanes(form, 8, 4, devices=Devices(platform=platform))
    slots = np.array([7, 0, 4, 2, 5])
    pool = np.full((9, *lanes.state.shape[1:]), np.nan, np.float32)
    pool[slots] = lanes.state
    run = jax.jit(lambda inputs: tuple(delta_rule_step(inputs)))
    output, rows = run(replace(lanes, state=jnp.asarray(pool), slots=jnp.asarray(slots, jnp.int32)))
    check(form, lanes, (output, rows[slots]))
    np.testing.assert_array_equal(rows[slots[1]], lanes.state[1])
    assert np.isnan(np.delete(rows, slots, axis=0)).all()
