"""Isolation: every lane of every real step is changed, all other lanes compared bitwise.

The same helper has to find the leaks that are put in on purpose, or these tests would mean nothing.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from disturbed_lanes import arguments, disturb_halves, measure, program, step_shape
from paged_caches import by_lane, of_lanes
from reused_rows import check_reused_rows
from tiny_variants import OTHER_GOLDENS

import hybridlm
from ir_passes import PageTable, Shared, SlotMap

GOLDEN = Path(__file__).parents[2] / "golden"
LANES, CHUNK, CONTEXT, VOCAB = 4, 7, 140, 97
Step = Callable[..., Any]
# Two layers, one of a kind, with experts; in the long run without, of three layers, and of the other families.
MODELS = [
    "next_old_fields",
    *(pytest.param(name, marks=pytest.mark.long) for name in ("dense", "dense_interval", "sparse_multimodal")),
    *(pytest.param(name, marks=pytest.mark.long) for name in OTHER_GOLDENS),
]


@pytest.fixture(scope="module", params=MODELS)
def lm(request: pytest.FixtureRequest, text_path: Path) -> hybridlm.LM:
    directory = text_path if request.param == "dense" else GOLDEN / request.param
    return hybridlm.load(directory, lanes=LANES, context=CONTEXT, dtype="float32", chunk=CHUNK)


STEPS: dict[str, dict[str, Any]] = {
    "generate-1": {"step": "generate", "tokens": 1, "top": 2},
    "generate-7": {"step": "generate", "tokens": CHUNK, "top": 2},
    "score-7": {"step": "score", "tokens": CHUNK, "top": 2},
    "score-7-chosen": {"step": "score", "tokens": CHUNK, "top": 2, "chosen": 3},
    "hidden-7": {"step": "hidden", "tokens": CHUNK},
    "verify-7": {"step": "verify", "tokens": CHUNK, "top": 2},
    # with vectors that are NaN, and ablated heads, of one lane at a time
    "probed-score-7": {"step": "score", "tokens": CHUNK, "top": 2, "probes": (2, 3, 2, 1)},
    "probed-generate-1": {"step": "generate", "tokens": 1, "top": 2, "probes": (2, 1, 2, 1)},
    # with the drafts of the MTP head after each lane's token
    "drafting-generate-1": {"step": "generate", "tokens": 1, "top": 2, "mtp_drafts": 2},
    "drafting-verify-7": {"step": "verify", "tokens": CHUNK, "top": 2, "mtp_drafts": 2},
}
SHORT = list(STEPS)[:5]
# test_verify_step.py has its own comparisons in the default run
EVERY = (*SHORT, pytest.param("verify-7", marks=pytest.mark.long))
PROBED = ("probed-score-7", pytest.param("probed-generate-1", marks=pytest.mark.long))
DRAFTING = ("drafting-generate-1", "drafting-verify-7")


@pytest.fixture(scope="module")
def drafting() -> hybridlm.LM:
    """A model that steps with its multi-token-prediction head."""
    sizes: dict[str, Any] = {"lanes": LANES, "context": CONTEXT, "dtype": "float32", "chunk": CHUNK}
    return hybridlm.load(GOLDEN / "next_old_fields", speculate="mtp", draft_tokens=2, **sizes)


def check_no_lane_reaches_another(lm: hybridlm.LM, step: str) -> None:
    figures = measure(lm, step_shape(lm, **STEPS[step]))
    assert figures.leaks == []
    # a change must have an effect, or the test is empty; idle lanes and settings of greedy lanes are exempt
    assert (0, "everything") not in figures.inert and (2, "everything") not in figures.inert
    assert (1, "args[2].batch.tokens") not in figures.inert
    first_mixer = lm.engine.new_rows(1).layers[0][0]
    for path, _ in jax.tree_util.tree_leaves_with_path(first_mixer):
        assert (2, f"args[1].layers[0][0]{jax.tree_util.keystr(path)}") not in figures.inert


@pytest.mark.parametrize("step", EVERY)
def test_no_lane_reaches_another(lm: hybridlm.LM, step: str) -> None:
    check_no_lane_reaches_another(lm, step)


@pytest.mark.slow
@pytest.mark.parametrize("step", PROBED)
def test_no_probe_of_a_lane_reaches_another(lm: hybridlm.LM, step: str) -> None:
    shape = step_shape(lm, **STEPS[step])
    figures = measure(lm, shape)
    assert figures.leaks == []
    calls = ["layers", "vectors.vector", *(["places"] if shape.step == "score" else [])]
    calls += ["ablations.unit"] if any(lm.model.sites()) else []  # Mamba has no heads or experts
    calls = [f"args[2].probes.{name}" for name in calls]
    assert [source for source in calls if all((lane, source) in figures.inert for lane in range(LANES))] == []


@pytest.mark.long
@pytest.mark.parametrize("step", DRAFTING)
def test_no_lane_reaches_the_mtp_drafts_of_another(drafting: hybridlm.LM, step: str) -> None:
    check_no_lane_reaches_another(drafting, step)
    check_a_lane_beside_nan(drafting, step)


def _lanes_from(leaf: jax.Array, rows: Any) -> jax.Array:
    """Return rows of other lanes, or consecutive pages after the null page."""
    each, null = len(leaf) // LANES, len(leaf) % LANES
    lanes = leaf[null:].reshape(LANES, each, *leaf.shape[1:])[rows]
    return jnp.concatenate([leaf[:null], lanes.reshape(leaf[null:].shape)])


def from_neighbour(step: Step) -> Step:
    """Every lane's state is the next lane's."""

    def wrong(params, pools, inputs):
        left_lanes, right_lanes = np.roll(np.arange(LANES), 1), np.roll(np.arange(LANES), -1)
        out, new = step(params, jax.tree.map(lambda leaf: _lanes_from(leaf, left_lanes), pools), inputs)
        return out, jax.tree.map(lambda leaf: _lanes_from(leaf, right_lanes), new)

    return wrong


def batch_mean(step: Step) -> Step:
    """A normalisation over the batch, so weak that no text would look wrong."""

    def wrong(params, pools, inputs):
        out, new = step(params, pools, inputs)
        return jax.tree.map(lambda x: x + x.mean(0, keepdims=True) if x.dtype == jnp.float32 else x, out), new

    return wrong


def last_slot(step: Step) -> Step:
    """An idle lane writes to the last active row, as a clamped index does."""

    def wrong(params, pools, inputs):
        out, new = step(params, pools, inputs)
        rows = jnp.where(inputs.batch.lengths > 0, jnp.arange(LANES), LANES - 2)
        return out, jax.tree.map(lambda leaf: _lanes_from(leaf, rows), new)

    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("lm", ["dense"], indirect=True)
@pytest.mark.parametrize("fault", [from_neighbour, batch_mean, last_slot])
def test_a_leak_put_in_on_purpose_is_found(lm: hybridlm.LM, fault) -> None:
    shape = step_shape(lm, **STEPS["generate-1"])
    assert measure(lm, shape, fault).leaks and disturb_halves(lm, shape, fault)[0]


@pytest.mark.slow
def test_halves_of_the_lanes_reach_themselves_alone(lm: hybridlm.LM) -> None:
    assert disturb_halves(lm, step_shape(lm, **STEPS["generate-7"])) == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize("step", EVERY)
def test_permuted_lanes_give_permuted_results(lm: hybridlm.LM, step: str) -> None:
    shape = step_shape(lm, **STEPS[step])
    _, contract, run = program(lm, shape)
    args = arguments(lm, shape)
    order = np.array([2, 3, 1, 0])
    kinds = jax.tree.broadcast(contract.inputs, args, is_leaf=lambda x: not isinstance(x, tuple))

    def permuted(kind: Any, x: Any) -> Any:
        return x if isinstance(kind, Shared | SlotMap | PageTable) else of_lanes(x, LANES, lambda rows: rows[order])

    results = run(*jax.tree.map(permuted, kinds, args))
    for got, want in zip(*map(jax.tree.leaves, (results, run(*args))), strict=True):
        assert by_lane(got, LANES).tobytes() == by_lane(want, LANES)[order].tobytes()


def poison(leaf: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Put NaN in some places; in integers put the last token of the vocabulary."""
    return np.where(where, leaf.dtype.type(np.nan if leaf.dtype.kind == "f" else VOCAB - 1), leaf)


@pytest.mark.slow
def test_an_idle_lane_keeps_its_rows_bit_for_bit(lm: hybridlm.LM) -> None:
    for shape in (step_shape(lm, **STEPS[step]) for step in SHORT):
        *_, run = program(lm, shape)
        args = arguments(lm, shape)
        poisoned = jax.tree.map(lambda leaf: poison(leaf, np.arange(leaf.size).reshape(leaf.shape) % 3 == 0), args[1])
        _, pools = run(args[0], poisoned, *args[2:])
        for initial, final in zip(jax.tree.leaves(poisoned), jax.tree.leaves(pools), strict=True):
            assert by_lane(final, LANES)[3].tobytes() == by_lane(initial, LANES)[3].tobytes()


def check_a_lane_beside_nan(lm: hybridlm.LM, step: str) -> None:
    """Other lanes have NaN in rows and, unless tied to the head, in embeddings."""
    shape = step_shape(lm, **STEPS[step])
    *_, run = program(lm, shape)
    params, pools, inputs = arguments(lm, shape)
    lengths = inputs.batch.lengths
    where = list(lm.params).index("embed_tokens")
    changed = where if not lm.config.tied else -1
    poisoned = tuple(p.at[0].set(jnp.nan) if i == changed else p for i, p in enumerate(params))
    lane = 1
    mask = np.arange(LANES) != lane

    def in_other_lanes(rows: np.ndarray) -> np.ndarray:
        return poison(rows, mask.reshape((LANES,) + (1,) * (rows.ndim - 1)))

    poisoned_pools = jax.tree.map(lambda leaf: of_lanes(leaf, LANES, in_other_lanes), pools)
    poisoned_tokens = np.where(mask[:, None] | (np.arange(shape.tokens) >= lengths[:, None]), 0, inputs.batch.tokens)
    out, new = run(params, pools, inputs)
    poisoned_batch = inputs.batch._replace(tokens=poisoned_tokens.astype(np.int32))
    poisoned_out, poisoned_new = run(poisoned, poisoned_pools, inputs._replace(batch=poisoned_batch))
    real = lengths[lane]
    for a, b in zip(jax.tree.leaves(out), jax.tree.leaves(poisoned_out), strict=True):
        a, b = np.asarray(a)[lane], np.asarray(b)[lane]
        assert (a[:real] if shape.step == "score" else a).tobytes() == (
            b[:real] if shape.step == "score" else b
        ).tobytes()
        assert np.isfinite(b[:real] if shape.step == "score" else b).all()
    for a, b in zip(jax.tree.leaves(new), jax.tree.leaves(poisoned_new), strict=True):
        assert by_lane(a, LANES)[lane].tobytes() == by_lane(b, LANES)[lane].tobytes()


@pytest.mark.parametrize("step", EVERY)
def test_a_lane_next_to_nan_keeps_its_bits(lm: hybridlm.LM, step: str) -> None:
    check_a_lane_beside_nan(lm, step)


@pytest.mark.slow
def test_rows_of_earlier_sequences_change_no_bit(text_lm: hybridlm.LM) -> None:
    check_reused_rows(text_lm)


@pytest.mark.long
def test_rows_of_earlier_sequences_change_no_bit_in_any_model(lm: hybridlm.LM) -> None:
    check_reused_rows(lm)
