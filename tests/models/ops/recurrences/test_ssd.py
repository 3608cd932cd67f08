"""Three forms of SSD (Mamba2) agree for all lengths and touch nothing else."""

import re

import jax
import numpy as np
import pytest
from recurrence_cases import (
    check_equation,
    check_gradients,
    check_idle_lane,
    check_single_tokens,
    on_arrays,
    ssd_reference,
)

from models.ops.recurrences.ssd import ssd, ssd_chunked, ssd_step

KERNEL, CHUNK = 4, 8
LENGTHS = (1, KERNEL - 1, KERNEL, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5)
HEADS, GROUPS, KEY, VALUE = 6, 2, 5, 7
# float32 rounding over at most 29 tokens
TOLERANCE = 2e-5

chunked = jax.jit(on_arrays(ssd_chunked, chunk=CHUNK))
compiled = jax.jit(on_arrays(ssd_chunked, chunk=CHUNK, keep_state=True))
reference = jax.jit(on_arrays(ssd_reference))
PLATFORMS = pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])


def inputs(lengths: tuple[int, ...], seed: int = 0) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Random lanes; tokens past each length are NaN and infinity."""
    rng = np.random.default_rng(seed)
    lanes, tokens = len(lengths), max(lengths)
    valid = np.arange(tokens)[None] < np.array(lengths)[:, None]
    arrays = [rng.normal(size=(lanes, tokens, GROUPS, KEY)) / KEY**0.5 for _ in range(2)]
    arrays.append(rng.normal(size=(lanes, tokens, HEADS, VALUE)))
    arrays.append(-rng.exponential(0.3, size=(lanes, tokens, HEADS)))
    for i, x in enumerate(arrays):
        x[~valid] = np.nan if i % 2 else np.inf
    state = rng.normal(size=(lanes, HEADS, VALUE, KEY)).astype(np.float32)
    return [x.astype(np.float32) for x in arrays], state, valid


def none_fresh(state: np.ndarray) -> np.ndarray:
    return np.zeros(len(state), bool)


def float64(arrays: list[np.ndarray], state: np.ndarray, length: int, lane: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute one lane by the equation, in float64."""
    q, k, v, g = (x.astype(np.float64)[lane] for x in arrays)
    s = state.astype(np.float64)[lane]
    outs = np.zeros((length, HEADS, VALUE))
    for t in range(length):
        for h in range(HEADS):
            group = h // (HEADS // GROUPS)
            s[h] = np.exp(g[t, h]) * s[h] + np.outer(v[t, h], k[t, group])
            outs[t, h] = s[h] @ q[t, group]
    return outs, s


@pytest.mark.each_value
@pytest.mark.parametrize("longest", [1, CHUNK, max(LENGTHS)])
@pytest.mark.parametrize("form", [chunked, compiled, reference], ids=["chunked", "kept", "reference"])
def test_equals_the_equation_in_float64(form, longest: int) -> None:
    lengths = tuple(n for n in LENGTHS if n <= longest) + (0,)
    check_equation(form, float64, lengths, inputs(lengths, seed=longest), TOLERANCE)


@pytest.mark.parametrize("keep_state", [False, True])
def test_outputs_in_place_of_values_equal_the_equation_of_ssd(keep_state: bool) -> None:
    form = jax.jit(on_arrays(ssd_chunked, "gpu", chunk=CHUNK, keep_state=keep_state))
    check_equation(form, float64, (*LENGTHS, 0), inputs((*LENGTHS, 0)), TOLERANCE)


@PLATFORMS
def test_one_token_at_a_time_equals_all_at_once(platform: str) -> None:
    check_single_tokens(jax.jit(on_arrays(ssd_step, platform)), reference, inputs((13, 5, 0)), TOLERANCE)


@pytest.mark.each_value
@pytest.mark.parametrize("tokens", [1, 2, CHUNK + 3])
@PLATFORMS
def test_an_idle_lane_keeps_its_bits_and_its_neighbours_do_not_see_it(tokens: int, platform: str) -> None:
    check_idle_lane(jax.jit(on_arrays(ssd, platform)), inputs((tokens, 0, tokens)))


@pytest.mark.each_value
@pytest.mark.parametrize("tokens", [1, CHUNK + 3])
@pytest.mark.parametrize("form", [ssd, ssd_reference])
@PLATFORMS
def test_a_fresh_lane_starts_from_zero_whatever_its_state_holds(form, tokens: int, platform: str) -> None:
    arrays, state, valid = inputs((tokens, tokens, 0))
    state[0] = np.nan
    out, new = jax.device_get(jax.jit(on_arrays(form, platform))(*arrays, state, valid, np.array([True, False, False])))
    state[0] = 0.0
    for lane in (0, 1):
        want_out, want_state = float64(arrays, state, tokens, lane)
        np.testing.assert_allclose(out[lane], want_out, atol=TOLERANCE, rtol=0)
        np.testing.assert_allclose(new[lane], want_state, atol=TOLERANCE, rtol=0)


def test_strong_decay_leaves_no_nan() -> None:
    """A chunk's summed decays that float32 cannot invert."""
    arrays, state, valid = inputs((16,))
    arrays[3] = np.full_like(arrays[3], -60.0)
    want_out, want_state = float64(arrays, state, 16, 0)
    out, new = jax.device_get(chunked(*arrays, state, valid, none_fresh(state)))
    np.testing.assert_allclose(out[0], want_out, atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(new[0], want_state, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("tokens", [1, CHUNK, 3 * CHUNK + 5])
def test_the_state_is_not_copied(tokens: int) -> None:
    """A donated state is written in place, also where it goes through several chunks."""
    arrays, state, valid = inputs((tokens, 1))
    form = on_arrays(ssd) if tokens == 1 else on_arrays(ssd_chunked, chunk=CHUNK)

    def step(state, query, key, value, log_decay, valid, fresh):
        return form(query, key, value, log_decay, state, valid, fresh)

    operands = (state, *arrays, valid, none_fresh(valid))
    text = str(jax.jit(step, donate_argnums=0).lower(*operands).compile().as_text())
    shape = ",".join(map(str, state.shape))
    assert f"f32[{shape}]" in text
    assert not re.findall(rf"= f32\[{shape}\]\S* copy\(", text)


@pytest.mark.slow
def test_gradients_of_the_chunked_form_match_the_reference() -> None:
    check_gradients(chunked, reference, inputs((11, 4)))
