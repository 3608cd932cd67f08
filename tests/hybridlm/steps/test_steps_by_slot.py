"""Steps over rows in any order: lane i has the bits of row i."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from stepped_models import SteppedModel, greedy_inputs

from hybridlm.steps.edit import EDITED, no_edits, state_sites, types_in
from hybridlm.steps.operands import Batch, StepInputs
from hybridlm.steps.structure import Rows

LANES, ROWS, TOKENS = 4, 7, 6
SLOTS = np.array([5, 0, 3, 2], np.int32)
"""Row of each lane; the lanes that are idle are on rows of NaN, as all rows without a lane. Each row has one page."""
POSITIONS = np.array([0, 9, 30, 0], np.int32)
LENGTHS = {1: np.array([1, 1, 0, 1], np.int32), TOKENS: np.array([6, 2, 0, 5], np.int32)}
IDLE = 2

MODELS = [
    ("next_dense_layers", True), ("falcon_base", False), ("sparse_base", True), ("lfm2_moe_base", False),
    ("kimi_base", False), ("ling_base", False), ("falcon_mamba_base", False), ("jamba_base", False),
    ("nemotron_latent", False), ("granite_experts", False), ("bamba_base", False), ("mamba2_base", False),
    ("olmo_base", False), ("zamba2_base", False), ("lfm3_base", False), ("lara_base", False),
    ("minimax_base", False), ("indexed_base", False), ("ling_lightning", True),
    ("gigachat_base", False), ("alice_base", False),
]  # fmt: skip
"""A model of each kind of layer, and whether it has its MTP head."""
KERNELS = ["auto", "off"]


def page_count(model: SteppedModel) -> int:
    """Return a page for each row and the null page; 0 without KV caches."""
    return 1 + ROWS if model.arrays.blocks(1) else 0


def rows_of(model: SteppedModel) -> Rows:
    """Return a pool with random rows for active lanes and NaN in all others."""
    rng, pool = np.random.default_rng(1), model.arrays.abstract(ROWS, page_count(model))
    unused = np.array(sorted({*range(ROWS)} - {*SLOTS.tolist()} | {int(SLOTS[IDLE])}))

    def drawn(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        if np.issubdtype(leaf.dtype, np.integer):
            return rng.integers(0, 50, leaf.shape).astype(leaf.dtype)
        array = rng.normal(size=leaf.shape).astype(leaf.dtype)
        array[unused + len(leaf) - ROWS] = np.nan
        return array

    return jax.tree.map(drawn, pool)


@pytest.fixture(scope="module", params=MODELS, ids=lambda case: f"{case[0]}{'-head' * case[1]}")
def case(request: pytest.FixtureRequest) -> tuple[str, bool]:
    return request.param


@pytest.fixture(scope="module", params=KERNELS)
def model(request: pytest.FixtureRequest, case: tuple[str, bool]) -> SteppedModel:
    return SteppedModel(*case, request.param)


def inputs_of(step: str, tokens: int, slots: Any, paged: bool) -> StepInputs:
    """Return inputs of lanes in these slots, with pages after the null page."""
    rng, size = np.random.default_rng(2), (LANES, tokens)
    ids = rng.integers(0, 60, size).astype(np.int32)
    lengths = LENGTHS[tokens]
    pages = np.where(lengths > 0, 1 + slots, 0).astype(np.int32)[:, None] if paged else None
    batch = Batch.of([None] * LANES, tokens, slots, pages)
    batch = batch._replace(tokens=ids, lengths=lengths, positions=POSITIONS, kv_blocks=np.int32(1))
    if step in ("score", "hidden"):
        return StepInputs(batch, targets=rng.integers(0, 60, size).astype(np.int32) if step == "score" else None)
    drafts = np.where(lengths > 1, lengths - 1, 0).astype(np.int32) if step == "verify" else None
    if step == "generate" and tokens == 1:
        ids[0] = -1  # the token in its row
    return greedy_inputs(batch, drafts)


def in_order(pool: Rows) -> Rows:
    """The pool with the row of lane i at i."""
    order = np.array([*SLOTS, *sorted({*range(ROWS)} - {*SLOTS.tolist()})])

    def ordered(leaf: Any) -> np.ndarray:
        null = len(leaf) - ROWS
        return np.concatenate([np.asarray(leaf)[:null], np.asarray(leaf)[null + order]])

    return jax.tree.map(ordered, pool)


def check_rows(pool: Rows, results: Rows, ordered: Rows) -> None:
    """Compare lanes' rows with an ordered step, and all other rows with the earlier pool."""
    rows = [row for row in range(ROWS) if row not in SLOTS or row == SLOTS[IDLE]]
    leaves = (jax.tree_util.tree_leaves_with_path(pool), *map(jax.tree.leaves, (results, ordered)))
    for (path, old), new, expected in zip(*leaves, strict=True):
        null = len(old) - ROWS
        assert new[:null].tobytes() == old[:null].tobytes(), path
        old, new, expected = old[null:], new[null:], expected[null:]
        assert new[rows].tobytes() == old[rows].tobytes(), path
        assert new[SLOTS].tobytes() == expected[:LANES].tobytes(), path
        active = np.delete(SLOTS, IDLE)
        assert new[active].tobytes() != old[active].tobytes() or path[0].name == "token", path


def busy(outputs: Any) -> list[np.ndarray]:
    """Outputs of the lanes with tokens."""
    return [np.delete(np.asarray(leaf), IDLE, axis=0) for leaf in jax.tree.leaves(outputs)]


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize(
    "step, tokens", [("generate", 1), ("generate", TOKENS), ("verify", TOKENS), ("score", TOKENS), ("hidden", TOKENS)]
)
def test_rows_in_any_order_give_the_bits_of_row_i_for_lane_i(
    model: SteppedModel, case: tuple[str, bool], step: Any, tokens: int
) -> None:
    pages = page_count(model)
    pool, drafts = rows_of(model), 2 if case[1] and step in ("generate", "verify") else 0
    inputs = inputs_of(step, tokens, SLOTS, pages > 0)
    shape = model.shape(inputs, ROWS, pages, drafts)
    assert f"{LANES}x{tokens} of {ROWS}" in str(shape)
    outputs, rows = model.run(shape, model.params, pool, inputs)
    ordered_outputs, ordered = model.run(
        shape, model.params, in_order(pool), inputs_of(step, tokens, np.arange(LANES, dtype=np.int32), pages > 0)
    )
    for got, expected in zip(busy(outputs), busy(ordered_outputs), strict=True):
        assert got.tobytes() == expected.tobytes()
    valid = np.arange(tokens)[None] < LENGTHS[tokens][:, None]
    for leaf in jax.tree.leaves(outputs):
        if np.issubdtype(leaf.dtype, np.floating) and leaf.shape[:2] == valid.shape:
            assert np.isfinite(leaf[valid]).all()
    check_rows(pool, rows, ordered)


@pytest.mark.slow
@pytest.mark.each_value
def test_states_are_edited_in_the_rows_of_the_lanes(model: SteppedModel) -> None:
    pool, pages = rows_of(model), page_count(model)
    edits: Any = no_edits(LANES, types_in(model.structure, pool))
    site = state_sites(model.structure)[0]
    edit = edits[site.array]
    edit.layer[0], edit.unit[0, 0], edit.factor[0] = site.layer, True, -2.0
    edit.layer[1], edit.unit[1, 0], edit.replaced[1], edit.value[1] = site.layer, True, True, np.nan
    for other in edits.values():
        other.value[3] = np.nan  # of a lane without an edit
    after = model.edited(pool, SLOTS, edits, pages)
    for place, (before, new) in enumerate(zip(jax.tree.leaves(pool), jax.tree.leaves(after), strict=True)):
        expected = before.copy()
        if place == site.place:
            expected[SLOTS[0], 0] *= -2.0
            expected[SLOTS[1], 0] = np.nan
        assert new.tobytes() == expected.tobytes()


def test_states_that_are_edited_are_columns_of_the_page(root: Path) -> None:
    head = " | ".join(["| model", *(f"`{role}`" for role in EDITED)])
    assert head in (root / "docs" / "research.md").read_text()
