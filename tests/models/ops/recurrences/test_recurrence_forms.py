"""Three forms of each recurrence agree for all lengths and touch nothing else."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_mutants.layers import MUTANTS
from recurrence_cases import FORMS, check, delta_rule_reference, on_arrays, ssd_reference
from recurrence_cases import inputs as recurrence_lanes

from models import Devices
from models.ops.recurrences.delta_rule import delta_rule, delta_rule_chunked, delta_rule_step
from models.ops.recurrences.ssd import ssd, ssd_chunked, ssd_step

KERNEL, KEY, VALUE = 4, 5, 7
FAULTS = {mutant.id: mutant for mutant in MUTANTS}
# float32 rounding over the tokens of unit-length keys
TOLERANCE = 2e-5
# no lane is fresh
OLD = np.zeros(16, bool)
Inputs = tuple[list[np.ndarray], np.ndarray, np.ndarray]
"""Tokens' operands, states `[lane, head, value, key]` and which tokens are real `[lane, token]`."""


class Rule(NamedTuple):
    """A recurrence.

    Attributes:
        whole, step, chunked, reference: any number of tokens, one, chunks, and token by token.
        chunk: tokens of a chunk; with a decay per channel these are powers of two.
        heads, groups: of values, and of queries and keys.
    """

    whole: Callable[..., Any]
    step: Callable[..., Any]
    chunked: Callable[..., Any]
    reference: Callable[..., Any]
    chunk: int
    heads: int
    groups: int

    @property
    def lengths(self) -> tuple[int, ...]:
        chunk = self.chunk
        return 1, KERNEL - 1, KERNEL, chunk - 1, chunk, chunk + 1, 3 * chunk + 5


DELTA = delta_rule, delta_rule_step, delta_rule_chunked, delta_rule_reference
RULES = {
    "head": Rule(*DELTA, 8, 3, 3), "channel": Rule(*DELTA, 32, 3, 3),
    "ssd": Rule(ssd, ssd_step, ssd_chunked, ssd_reference, 8, 6, 2),
}  # fmt: skip
each_rule = pytest.mark.parametrize("name", RULES)
each_platform = pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])


def inputs(name: str, lengths: tuple[int, ...], seed: int = 0) -> Inputs:
    """Random lanes; padding is NaN and infinity."""
    rng, rule = np.random.default_rng(seed), RULES[name]
    lanes, tokens = len(lengths), max(lengths)
    valid = np.arange(tokens)[None] < np.array(lengths)[:, None]
    query, key = (rng.normal(size=(lanes, tokens, rule.groups, KEY)) for _ in range(2))
    query, key = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (query, key))
    value = rng.normal(size=(lanes, tokens, rule.heads, VALUE))
    log_decay = -rng.exponential(0.3, size=(lanes, tokens, rule.heads, *([KEY] if name == "channel" else [])))
    beta = [] if name == "ssd" else [rng.uniform(0.05, 0.98, size=(lanes, tokens, rule.heads))]
    arrays = []
    for i, x in enumerate((query, key, value, log_decay, *beta)):
        x[~valid] = np.nan if i % 2 else np.inf
        arrays.append(x.astype(np.float32))
    return arrays, rng.normal(size=(lanes, rule.heads, VALUE, KEY)).astype(np.float32), valid


def float64(
    name: str, arrays: list[np.ndarray], state: np.ndarray, length: int, lane: int
) -> tuple[np.ndarray, np.ndarray]:
    """Compute one lane by the equation, in float64."""
    heads, groups = RULES[name].heads, RULES[name].groups
    q, k, v, g, *beta = (x.astype(np.float64)[lane] for x in arrays)
    s = state.astype(np.float64)[lane]
    outs = np.zeros((length, heads, VALUE))
    for t in range(length):
        s *= np.exp(g[t]).reshape((heads, 1, -1))
        for h in range(heads):
            key, query = k[t, h * groups // heads], q[t, h * groups // heads]
            s[h] += np.outer(beta[0][t, h] * (v[t, h] - s[h] @ key) if beta else v[t, h], key)
            outs[t, h] = s[h] @ query
    return outs, s


def check_equation(name: str, form: Any, lengths: tuple[int, ...], operands: Inputs, fresh: Any, atol: float) -> None:
    """Compare a form with float64 up to each length; fresh lanes hold NaN, and idle lanes keep their bits."""
    arrays, state, valid = operands
    state[fresh] = np.nan
    out, new = jax.device_get(form(*arrays, state, valid, fresh))
    for lane, length in enumerate(lengths):
        if not length:
            assert new[lane].tobytes() == state[lane].tobytes()
            continue
        want_out, want_state = float64(name, arrays, np.where(fresh[:, None, None, None], 0, state), length, lane)
        np.testing.assert_allclose(out[lane, :length], want_out, atol=atol, rtol=0)
        np.testing.assert_allclose(new[lane], want_state, atol=atol, rtol=0)
    assert (out[~valid] == 0).all()


@pytest.mark.each_value
@each_rule
@pytest.mark.parametrize("form", ["chunked", "kept", "reference"])
# Tokens per step; every step has lanes of all the shorter lengths too.
@pytest.mark.parametrize("count", [1, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 3, 4)), 5, 7])
def test_equals_the_equation_in_float64(name: str, form: str, count: int) -> None:
    rule = RULES[name]
    lengths, options = (*rule.lengths[:count], 0), {"chunk": rule.chunk, "keep_state": form == "kept"}
    run = on_arrays(rule.reference) if form == "reference" else on_arrays(rule.chunked, **options)
    operands = inputs(name, lengths, seed=count)
    operands[1][-1] = np.nan
    check_equation(name, jax.jit(run), lengths, operands, OLD[: len(lengths)], TOLERANCE)


@pytest.mark.each_value
@each_rule
@pytest.mark.parametrize("keep_state", [False, True])
def test_outputs_in_place_of_values_equal_the_equation(name: str, keep_state: bool) -> None:
    rule = RULES[name]
    lengths = (*RULES["head"].lengths, 0)
    form = jax.jit(on_arrays(rule.chunked, "gpu", chunk=rule.chunk, keep_state=keep_state))
    check_equation(name, form, lengths, inputs(name, lengths), OLD[: len(lengths)], TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("id", ["", *FAULTS])
def test_a_fault_of_the_chunks_is_seen_where_the_last_is_filled_up(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chunk = RULES["head"].chunk
    lengths = (chunk, chunk + 3, 2, 0)
    operands = inputs("head", lengths)
    operands = *operands[0], *operands[1:], OLD[: len(lengths)]
    _, want = jax.device_get(jax.jit(on_arrays(delta_rule_reference))(*operands))
    if id:
        FAULTS[id].fault(monkeypatch)
    _, result = on_arrays(delta_rule_chunked, chunk=chunk)(*map(jnp.asarray, operands))
    wrong = [not np.allclose(result[lane], want[lane], atol=TOLERANCE, rtol=0) for lane in range(len(lengths))]
    assert wrong == [bool(id) and length % chunk > 0 for length in lengths]


@pytest.mark.each_value
@each_rule
@each_platform
def test_one_token_at_a_time_equals_all_at_once(name: str, platform: str) -> None:
    arrays, state, valid = inputs(name, (13, 5, 0))
    step = jax.jit(on_arrays(RULES[name].step, platform))
    want_out, want_state = jax.device_get(jax.jit(on_arrays(RULES[name].reference))(*arrays, state, valid, OLD[:3]))
    for t in range(valid.shape[1]):
        out, state = step(*(x[:, t : t + 1] for x in arrays), state, valid[:, t : t + 1], OLD[:3])
        np.testing.assert_allclose(np.asarray(out)[:, 0], want_out[:, t], atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(state, want_state, atol=TOLERANCE, rtol=0)


@pytest.mark.each_value
@pytest.mark.parametrize("tokens", [1, 2, 11])
@each_rule
@each_platform
def test_an_idle_lane_keeps_its_bits_and_its_neighbours_do_not_see_it(name: str, tokens: int, platform: str) -> None:
    arrays, state, valid = inputs(name, (tokens, 0, tokens))
    form, poisoned = jax.jit(on_arrays(RULES[name].whole, platform)), state.copy()
    poisoned[1] = np.nan
    poisoned[1, 0, :, 0] = [-0.0, 0.0, np.inf, 1e-45, 1, 2, 3]
    out, new = jax.device_get(form(*arrays, state, valid, OLD[:3]))
    poisoned_out, poisoned_new = jax.device_get(form(*arrays, poisoned, valid, OLD[:3]))
    assert poisoned_new[1].tobytes() == poisoned[1].tobytes()
    assert new[1].tobytes() == state[1].tobytes()
    for lane in (0, 2):
        assert out[lane].tobytes() == poisoned_out[lane].tobytes()
        assert new[lane].tobytes() == poisoned_new[lane].tobytes()
    assert (poisoned_out[1] == 0).all()


@pytest.mark.each_value
@each_rule
@pytest.mark.parametrize("tokens", [1, 11])
@pytest.mark.parametrize("form", ["whole", "reference"])
@each_platform
def test_a_fresh_lane_does_not_read_its_old_state(name: str, form: str, tokens: int, platform: str) -> None:
    arrays, state, valid = inputs(name, (tokens, tokens, 0))
    stale = state.copy()
    stale[0] = np.nan
    stale[0, 0, 0, :2] = np.inf, -0.0
    state[0] = 0.0
    run = jax.jit(on_arrays(getattr(RULES[name], form), platform))
    want_out, want_new = jax.device_get(run(*arrays, state, valid, OLD[:3]))
    out, new = jax.device_get(run(*arrays, stale, valid, np.array([True, False, False])))
    np.testing.assert_array_equal(out, want_out)
    np.testing.assert_array_equal(new, want_new)


@pytest.mark.each_value
@pytest.mark.slow
@each_rule
@pytest.mark.parametrize("keep_state", [False, True])
def test_only_the_first_of_several_chunks_begins_from_zero(name: str, keep_state: bool) -> None:
    rule = RULES[name]
    lengths = (3 * rule.chunk, rule.chunk + 3, 0)
    form = jax.jit(on_arrays(rule.chunked, chunk=rule.chunk, keep_state=keep_state))
    check_equation(name, form, lengths, inputs(name, lengths), np.array([True, True, False]), TOLERANCE)


def test_correlated_keys_and_strong_writes_stay_exact() -> None:
    """Here a product of powers of the chunk's system loses all digits."""
    (query, key, value, log_decay, beta), valid, state = inputs("head", (64,))
    key = np.broadcast_to(key[:, :1], key.shape)
    arrays = [query, key, value, np.float32(0.001) * log_decay, np.full_like(beta, 0.999)]
    form = jax.jit(on_arrays(delta_rule_chunked, chunk=64))
    check_equation("head", form, (64,), (arrays, valid, state), OLD[:1], 1e-4)


@pytest.mark.slow
@each_rule
def test_strong_decay_stays_finite_and_exact(name: str) -> None:
    """Chunk sums that could overflow, and weak decays right after strong ones."""
    operands = inputs(name, (64,))
    operands[0][3] *= np.float32(0.1)
    operands[0][3][:, 5::7] = -60.0
    operands[0][3][:, 20, :2] = -80.0
    # a sum of decays is about 600 at the end of the chunk, and known to half a last place of that
    check_equation(name, jax.jit(on_arrays(RULES[name].chunked, chunk=64)), (64,), operands, OLD[:1], 1e-4)


@pytest.mark.slow
@each_rule
def test_gradients_of_the_chunked_form_match_the_reference(name: str) -> None:
    """By operands and states."""
    arrays, state, valid = inputs(name, (11, 4))
    arrays = [np.where(valid.reshape(valid.shape + (1,) * (x.ndim - 2)), x, np.float32(0)) for x in arrays]

    def loss(form: Callable[..., Any], arrays: list[np.ndarray], state: np.ndarray) -> Any:
        out, new = form(*arrays, state, jnp.asarray(valid), jnp.zeros(2, bool))
        return jnp.sum(jnp.sin(out)) + jnp.sum(jnp.cos(new))

    forms = on_arrays(RULES[name].chunked, chunk=RULES[name].chunk), on_arrays(RULES[name].reference)
    gradients = (jax.jit(jax.grad(partial(loss, form), argnums=(0, 1)))(arrays, state) for form in forms)
    for a, b in zip(*map(jax.tree.leaves, gradients), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-4)


@each_platform
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


@pytest.mark.parametrize("tokens", [1, 8, 29])
def test_the_state_is_not_copied(tokens: int) -> None:
    """A donated state is written in place, also where it goes through several chunks."""
    arrays, state, valid = inputs("ssd", (tokens, 1))
    form = on_arrays(ssd) if tokens == 1 else on_arrays(ssd_chunked, chunk=8)

    def step(state, query, key, value, log_decay, valid, fresh):
        return form(query, key, value, log_decay, state, valid, fresh)

    text = str(jax.jit(step, donate_argnums=0).lower(state, *arrays, valid, OLD[:2]).compile().as_text())
    shape = ",".join(map(str, state.shape))
    assert f"f32[{shape}]" in text
    assert not re.findall(rf"= f32\[{shape}\]\S* copy\(", text)
