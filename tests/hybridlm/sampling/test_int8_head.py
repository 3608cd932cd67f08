"""The most likely token by a narrow copy of the head: what all logits give, for every input and every head."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_dtypes import bfloat16

from hybridlm.cpu_tuning.packed_u32 import packed_u32
from hybridlm.requests.sampling_operands import sampling_arrays
from hybridlm.sampling import int8_head
from hybridlm.sampling.int8_head import (
    GROUP_TOKENS,
    Int8Head,
    group_upper_bounds,
    int8_copy_bytes,
    most_likely_by_int8_head,
    sample_with_int8_head,
    supports_int8_head,
)
from hybridlm.sampling.rotation import rotated
from hybridlm.sampling.sampling import BESIDE_GREEDY, FILTERED, GREEDY, SAMPLED, Sampling

pytestmark = pytest.mark.slow

VOCAB, HIDDEN = 32 * 9, 70
LANES = [1, 3, 8, *(pytest.param(count, marks=pytest.mark.long) for count in (2, 4, 5))]
search = jax.jit(most_likely_by_int8_head)


def build_int8_head(head: np.ndarray) -> Int8Head:
    words = packed_u32(jnp.asarray(head, jnp.bfloat16))
    assert words is not None
    return int8_head.build_int8_head(words)


def exact(head: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Logits in float64, of the head's numbers and the rounded inputs, [lane, token]."""
    with np.errstate(invalid="ignore"):
        return x.astype(bfloat16).astype(np.float64) @ head.astype(bfloat16).astype(np.float64).T


def heads(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Worst cases of rounding to few integers, and heads with many close logits."""
    normal = rng.normal(size=(VOCAB, HIDDEN)).astype(np.float32)
    outliers = np.where(rng.random(normal.shape) < 0.02, 50 * normal, normal)
    return {
        "normal": normal,
        "rows of all sizes": normal * np.exp(rng.normal(size=(VOCAB, 1)) * 4).astype(np.float32),
        "outliers": outliers,
        "one large number in each row": normal * 0.01 + 8 * np.eye(VOCAB, HIDDEN, dtype=np.float32),
        "close rows": normal[:1] + 1e-2 * normal,
        "rows of zeros": np.where(rng.random((VOCAB, 1)) < 0.5, 0, normal),
        "few": np.sign(normal) * (rng.random(normal.shape) < 0.05),
        "tiny": normal * np.float32(1e-30),
        "huge": normal * np.float32(1e30),
    }


def inputs(rng: np.random.Generator, lanes: int) -> dict[str, np.ndarray]:
    normal = rng.normal(size=(lanes, HIDDEN)).astype(np.float32)
    return {
        "normal": normal,
        "outliers": np.where(rng.random(normal.shape) < 0.05, 100 * normal, normal),
        "one number": normal * np.eye(lanes, HIDDEN, 3, dtype=np.float32),
        "tiny": normal * np.float32(1e-4),
        "large": normal * np.float32(1e4),
    }


@pytest.mark.parametrize("lanes", LANES)
def test_no_logit_is_above_its_bound_and_the_token_is_the_most_likely_one(lanes: int) -> None:
    rng = np.random.default_rng(lanes)
    for head_name, head in heads(rng).items():
        int8_head = build_int8_head(head)
        for name, x in inputs(rng, lanes).items():
            logits = exact(head, x)
            highest = logits.reshape((lanes, -1, GROUP_TOKENS)).max(axis=2)
            bounds = np.asarray(group_upper_bounds(jnp.asarray(x.astype(bfloat16), jnp.float32), int8_head))
            assert (bounds >= highest).all(), (head_name, name)
            found = np.asarray(search(x, np.ones(lanes, bool), int8_head))
            # float32 sums: of logits that are so close either may be found
            off = 1e-5 * np.abs(head.astype(np.float64)).max() * np.abs(x).max() * HIDDEN**0.5
            assert (np.take_along_axis(logits, found[:, None], axis=1)[:, 0] >= logits.max(axis=1) - off).all()
            clear = np.sort(logits, axis=1)[:, -1] - np.sort(logits, axis=1)[:, -2] > off
            assert (found == logits.argmax(axis=1))[clear].all(), (head_name, name)


@pytest.mark.parametrize("side", ["head", "input"])
def test_what_rounding_takes_counts_where_all_of_it_points_the_same_way(side: str) -> None:
    """One side is hardly rounded, of the other almost half a step is taken from every number, against the other."""
    rng, hidden = np.random.default_rng(9), 1024
    basis = np.asarray(rotated(jnp.eye(hidden)), np.float64)
    signs = np.where(rng.random(hidden) < 0.5, -1.0, 1.0)
    numbers = rng.integers(-30, 31, (GROUP_TOKENS, hidden)) + 0.4 * signs
    numbers[:, 0] = 127
    taken, kept = (numbers @ basis.T).astype(np.float32), (signs @ basis.T).astype(np.float32)[None]
    head, x = (taken, kept) if side == "head" else (np.repeat(kept, GROUP_TOKENS, axis=0), taken[:1])
    bound = np.asarray(group_upper_bounds(jnp.asarray(x.astype(bfloat16), jnp.float32), build_int8_head(head)))[0, 0]
    logits = exact(head, x)
    assert logits.max() <= bound < logits.max() + 0.2 * hidden


def test_bounds_are_close_enough_to_leave_few_groups() -> None:
    rng = np.random.default_rng(1)
    head, x = rng.normal(size=(32 * 400, 64)), rng.normal(size=(8, 64))
    bounds = np.asarray(group_upper_bounds(jnp.asarray(x.astype(bfloat16), jnp.float32), build_int8_head(head)))
    left = (bounds >= exact(head, x).max(axis=1, keepdims=True)).sum(axis=1)
    assert left.min() >= 1 and left.max() <= 12


def test_of_equal_logits_the_first_is_found() -> None:
    rng = np.random.default_rng(2)
    head = rng.normal(size=(VOCAB, HIDDEN))
    x = rng.normal(size=(2, HIDDEN)).astype(np.float32)
    best = exact(head, x).argmax(axis=1)
    head[[7, 40, VOCAB - 1]] = head[best[0]]
    head[[8, 41, VOCAB - 2]] = head[best[1]]
    first = [min(7, best[0]), min(8, best[1])]
    assert np.asarray(search(x, np.ones(2, bool), build_int8_head(head))).tolist() == first
    # Two of the same row, the second in a group that is looked at first: another one there is long and hardly known.
    across = rng.normal(size=HIDDEN)
    across -= (across @ x[0]) / (x[0] @ x[0]) * x[0]
    head[VOCAB - 3] = 0.2 * head[best[0]] + 100 * across
    int8_head = build_int8_head(head)
    bounds = np.asarray(group_upper_bounds(jnp.asarray(x[:1].astype(bfloat16), jnp.float32), int8_head))[0]
    assert bounds.argmax() == len(bounds) - 1 and exact(head, x[:1]).argmax() == first[0]
    assert np.asarray(search(x[:1], np.ones(1, bool), int8_head)).tolist() == first[:1]
    same = np.tile(rng.normal(size=(1, HIDDEN)), (VOCAB, 1))
    assert np.asarray(search(x, np.ones(2, bool), build_int8_head(same))).tolist() == [0, 0]


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_inputs_without_bounds_are_searched_whole(value: float) -> None:
    """With what is no number anywhere there is no token; what is found else is what all logits give."""
    rng = np.random.default_rng(3)
    head, x = rng.normal(size=(VOCAB, HIDDEN)), rng.normal(size=(3, HIDDEN)).astype(np.float32)
    x[1] = 0.0 if value == 0.0 else x[1]
    x[1, 4] = value
    logits = exact(head, x)
    int8_head = build_int8_head(head)
    expected = np.where(np.isnan(logits).any(axis=1), VOCAB, logits.argmax(axis=1))
    assert np.asarray(search(x, np.ones(3, bool), int8_head)).tolist() == expected.tolist()
    assert not np.isnan(value) or expected[1] == VOCAB
    # infinity times nothing is no number: it may stand in the last group that is looked at
    head[VOCAB - 1, 4] = 0.0
    with_zero = np.asarray(search(x, np.ones(3, bool), build_int8_head(head)))
    assert with_zero[1] == (0 if value == 0.0 else VOCAB)
    # and the others are found as alone, bit for bit the same step or not
    alone = [int(search(x[i : i + 1], np.ones(1, bool), int8_head)[0]) for i in (0, 2)]
    assert alone == expected[[0, 2]].tolist()


def test_lanes_that_are_not_asked_are_not_searched() -> None:
    rng = np.random.default_rng(4)
    int8_head = build_int8_head(rng.normal(size=(VOCAB, HIDDEN)))
    x = rng.normal(size=(3, HIDDEN)).astype(np.float32)
    found = np.asarray(search(x, np.array([True, False, True]), int8_head))
    every = np.asarray(search(x, np.ones(3, bool), int8_head))
    assert found[1] == VOCAB and found[[0, 2]].tolist() == every[[0, 2]].tolist()


def test_a_lane_of_temperature_0_samples_the_same_beside_any_other() -> None:
    rng = np.random.default_rng(5)
    int8_head = build_int8_head(rng.normal(size=(VOCAB, HIDDEN)))
    x = rng.normal(size=(3, HIDDEN)).astype(np.float32)
    other = jnp.array([11, 12, 13], jnp.int32)

    @jax.jit
    def sampled(int8_head: Int8Head, sampling: Sampling, sampling_mode: jax.Array) -> jax.Array:
        return sample_with_int8_head(
            jnp.asarray(x), jnp.ones(3, bool), int8_head, sampling, sampling_mode, lambda: other
        )

    def draw(temperature: list[float], sampling_mode: int) -> list[int]:
        sampling, _ = sampling_arrays([None] * 3)
        sampling = sampling._replace(temperature=np.array(temperature, np.float32))
        return np.asarray(sampled(int8_head, sampling, np.int32(sampling_mode))).tolist()

    greedy = draw([0, 0, 0], GREEDY)
    assert greedy == np.asarray(search(x, np.ones(3, bool), int8_head)).tolist()
    assert draw([0, 1, 0], SAMPLED + BESIDE_GREEDY) == [greedy[0], 12, greedy[2]]
    assert draw([0.7, 1, 0], FILTERED + BESIDE_GREEDY) == [11, 12, greedy[2]]
    assert draw([0.7, 1, 2], SAMPLED) == [11, 12, 13]
    # Where the host says that no lane is greedy and one is, it has no token, which is an error further on.
    assert draw([0.7, 1, 0], FILTERED) == [11, 12, VOCAB]


def test_copy_is_of_eight_bits_and_says_what_it_takes() -> None:
    head = np.random.default_rng(6).normal(size=(VOCAB, HIDDEN))
    int8_head = build_int8_head(head)
    assert (int8_head.codes.dtype, int8_head.codes.shape) == (jnp.int8, (VOCAB, HIDDEN))
    assert np.abs(np.asarray(int8_head.codes, np.int32)).max(axis=1).tolist() == [127] * VOCAB
    kept = np.asarray(int8_head.codes, np.float64) * np.asarray(int8_head.scale, np.float64)[:, None]
    numbers = np.asarray(rotated(jnp.asarray(head.astype(bfloat16), jnp.float32)), np.float64)
    off = np.linalg.norm(kept - numbers, axis=1)
    assert (off <= np.asarray(int8_head.radius)).all() and (np.asarray(int8_head.radius) < 0.02 * HIDDEN**0.5).all()
    reach, norm = np.asarray(int8_head.reach), np.linalg.norm(kept, axis=1)
    assert (norm <= reach).all() and (reach < 1.01 * norm).all()
    assert int8_copy_bytes(jnp.asarray(head, jnp.bfloat16)) == sum(one.nbytes for one in int8_head[1:])


@pytest.mark.parametrize("lanes", [1, 3])
def test_bounds_are_as_close_where_a_few_numbers_are_far_larger(lanes: int) -> None:
    """Inputs and heads with outliers: of a thousand numbers some are a hundred times as large, as in trained models."""
    rng = np.random.default_rng(8)
    head, x = rng.normal(size=(32 * 60, 1024)), rng.normal(size=(lanes, 1024))
    head[:, [5, 77]] *= 20
    x[:, [9, 300, 301]] *= 100
    logits = exact(head, x)
    bounds = np.asarray(group_upper_bounds(jnp.asarray(x.astype(bfloat16), jnp.float32), build_int8_head(head)))
    above = bounds - logits.reshape((lanes, -1, GROUP_TOKENS)).max(axis=2)
    norms = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(head, axis=1).max()
    assert (above >= 0).all() and (above < 0.03 * norms).all()


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_radius_of_a_row_that_is_not_finite_is_none(number: float) -> None:
    head = np.random.default_rng(7).normal(size=(VOCAB, HIDDEN))
    head[5, 6] = number
    finite = np.isfinite(np.asarray(build_int8_head(head).radius))
    assert not finite[5] and finite.sum() == VOCAB - 1


def test_heads_of_other_shapes_and_dtypes_have_none() -> None:
    can = {
        (64, 8, "bfloat16"): True,
        (65, 8, "bfloat16"): False,
        (64, 7, "bfloat16"): False,
        (64, 8, "float16"): False,
        (64, 8, "float32"): False,
    }
    for (vocab, hidden, dtype), expected in can.items():
        assert supports_int8_head(jax.ShapeDtypeStruct((vocab, hidden), dtype)) == expected
