"""Lanes on rows and pages in any order have the bits of solo runs; other rows and pages stay."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from patched_functions import plant_fault
from stepped_models import SteppedModel, greedy_inputs

from hybridlm.steps.edit import EDITED, no_edits, state_sites, types_in
from hybridlm.steps.operands import Batch, StepInputs, blocks_for
from hybridlm.steps.structure import Rows
from ir_passes import IsolationError
from models import KV_BLOCK

LANES, ROWS, BLOCKS, PAGES, TOKENS, DRAFTS = 5, 8, 3, 19, 6, 2
SLOTS, IN_ORDER = np.array([5, 0, 3, 6, 2], np.int32), np.arange(LANES, dtype=np.int32)
"""Row of each lane, out of order and in order."""
POSITIONS = {
    1: np.array([0, 126, 127, 0, 128], np.int32),  # sequences of 1, 127, 128 and 129 tokens after the step
    TOKENS: np.array([0, 121, 125, 0, 128], np.int32),  # the third lane goes on in its second page
}
LENGTHS = {1: np.array([1, 1, 1, 0, 1], np.int32), TOKENS: np.array([6, 6, 6, 0, 3], np.int32)}
IDLE = 3

MODELS = [
    ("next_dense_layers", True), ("falcon_base", False), ("sparse_base", True), ("lfm2_moe_base", False),
    ("kimi_base", False), ("ling_base", False), ("falcon_mamba_base", False), ("jamba_base", False),
    ("nemotron_latent", False), ("granite_experts", False), ("bamba_base", False), ("mamba2_base", False),
    ("olmo_base", False), ("zamba2_base", False), ("lfm3_base", False), ("lara_base", False),
    ("minimax_base", False), ("indexed_base", False), ("ling_lightning", True),
    ("gigachat_base", False), ("alice_base", False),
]  # fmt: skip
"""A model of each kind of layer, and whether it has its MTP head."""
STEPS = [("generate", 1), ("generate", TOKENS), ("verify", TOKENS), ("score", TOKENS), ("hidden", TOKENS)]


@pytest.fixture(scope="module", params=MODELS, ids=lambda case: f"{case[0]}{'-head' * case[1]}")
def case(request: pytest.FixtureRequest) -> tuple[str, bool]:
    return request.param


@pytest.fixture(scope="module", params=["auto", "off"])
def model(request: pytest.FixtureRequest, case: tuple[str, bool]) -> SteppedModel:
    return SteppedModel(*case, request.param)


class LanePages(NamedTuple):
    """The pool and the page table of a step.

    Attributes:
        pool: NaN except for the rows of lanes and the positions that they have consumed.
        table: page table, int32 [lane, block], or None without KV caches.
        slots: row of each lane.
    """

    pool: Rows
    table: np.ndarray | None
    slots: np.ndarray

    @property
    def pages(self) -> int:
        """Pages of the pool; 0 without KV caches."""
        return 0 if self.table is None else PAGES

    def of_lane(self, leaf: Any, lane: int) -> list[int]:
        """Return the rows, or the pages, of a lane in an array of the pool."""
        if self.table is None or len(leaf) != PAGES:
            return [int(self.slots[lane])]
        return self.table[lane][self.table[lane] > 0].tolist()


def page_counts(tokens: int, drafts: int) -> np.ndarray:
    """Return the pages of each lane, with those for drafts of a head."""
    ends = POSITIONS[tokens] + LENGTHS[tokens] + drafts
    return np.where(LENGTHS[tokens] > 0, -(-ends // KV_BLOCK), 0)


def lane_pages(model: SteppedModel, tokens: int, drafts: int, slots: np.ndarray, order: np.ndarray) -> LanePages:
    """Return random lanes in rows `slots` and pages of `order`; other rows and pages are NaN."""
    counts, rng = page_counts(tokens, drafts), np.random.default_rng(1)
    table = np.zeros((LANES, BLOCKS), np.int32)
    pages = iter(order.tolist())
    for lane, count in enumerate(counts):
        table[lane, :count] = [next(pages) for _ in range(count)]
    has_pages = bool(model.arrays.blocks(1))

    def drawn(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        if np.issubdtype(leaf.dtype, np.integer):
            array = np.zeros(leaf.shape, leaf.dtype)
            array[slots] = rng.integers(0, 50, (LANES, *leaf.shape[1:]))
            return array
        array = np.full(leaf.shape, np.nan, leaf.dtype)
        if leaf.shape[0] == ROWS:
            array[slots] = rng.normal(size=(LANES, *leaf.shape[1:]))
            array[slots[IDLE]] = np.nan
            return array
        for lane, end in enumerate(POSITIONS[tokens]):
            for block in range(counts[lane]):
                content = rng.normal(size=leaf.shape[1:]).astype(leaf.dtype)
                consumed = np.clip(end - block * KV_BLOCK, 0, KV_BLOCK)
                array[table[lane, block], :, :consumed] = content[:, :consumed]
        return array

    abstract = model.arrays.abstract(ROWS, PAGES if has_pages else 0)
    return LanePages(jax.tree.map(drawn, abstract), table if has_pages else None, slots)


def inputs_of(step: str, tokens: int, lanes: LanePages, active: np.ndarray, drafts: int) -> StepInputs:
    """Return inputs of a step with tokens, rows and pages in the active lanes."""
    rng, size = np.random.default_rng(2), (LANES, tokens)
    ids = rng.integers(0, 60, size).astype(np.int32)
    if step == "generate" and tokens == 1:
        ids[0] = -1  # the token in its row
    lengths = np.where(active, LENGTHS[tokens], 0).astype(np.int32)
    pages = None if lanes.table is None else np.where(lengths[:, None] > 0, lanes.table, 0).astype(np.int32)
    batch = Batch.of([None] * LANES, tokens, lanes.slots, pages)
    end = int(np.max(POSITIONS[tokens] + LENGTHS[tokens])) + drafts
    batch = batch._replace(tokens=ids, lengths=lengths, positions=POSITIONS[tokens], kv_blocks=blocks_for(end))
    if step in ("score", "hidden"):
        return StepInputs(batch, targets=rng.integers(0, 60, size).astype(np.int32) if step == "score" else None)
    certain = np.where(lengths > 1, lengths - 1, 0).astype(np.int32) if step == "verify" else None
    return greedy_inputs(batch, certain)


def order_of(seed: int) -> np.ndarray:
    """Return all pages after the null page in a random order."""
    return np.random.default_rng(seed).permutation(np.arange(1, PAGES)).astype(np.int32)


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize(("step", "tokens"), STEPS)
def test_every_lane_has_the_bits_of_its_solo_run(
    model: SteppedModel, case: tuple[str, bool], step: str, tokens: int
) -> None:
    drafts = DRAFTS if case[1] and step in ("generate", "verify") else 0
    together = lane_pages(model, tokens, drafts, SLOTS, order_of(7))
    everyone = inputs_of(step, tokens, together, np.ones(LANES, bool), drafts)
    shape = model.shape(everyone, ROWS, together.pages, drafts)
    assert f"{LANES}x{tokens} of {ROWS}" in str(shape)
    outputs, after = model.run(shape, model.params, together.pool, everyone)
    alone = lane_pages(model, tokens, drafts, IN_ORDER, np.arange(1, PAGES, dtype=np.int32))
    active: list[int] = np.flatnonzero(LENGTHS[tokens]).tolist()
    for lane in active:
        inputs = inputs_of(step, tokens, alone, np.arange(LANES) == lane, drafts)
        solo_outputs, solo = model.run(shape, model.params, alone.pool, inputs)
        for result, expected in zip(*map(jax.tree.leaves, (outputs, solo_outputs)), strict=True):
            assert result[lane].tobytes() == expected[lane].tobytes()
        for new, expected in zip(*map(jax.tree.leaves, (after, solo)), strict=True):
            assert new[together.of_lane(new, lane)].tobytes() == expected[alone.of_lane(new, lane)].tobytes()
    leaves = jax.tree_util.tree_leaves_with_path(together.pool)
    for (path, before), new in zip(leaves, jax.tree.leaves(after), strict=True):
        written = sorted({place for lane in active for place in together.of_lane(new, lane)})
        others = np.setdiff1d(np.arange(len(new)), written)
        assert new[others].tobytes() == before[others].tobytes(), path
        assert new[written].tobytes() != before[written].tobytes() or path[0].name == "token", path
    for leaf in jax.tree.leaves(outputs):
        if np.issubdtype(leaf.dtype, np.floating) and leaf.shape[:2] == (LANES, tokens):
            assert np.isfinite(leaf[np.arange(tokens)[None] < LENGTHS[tokens][:, None]]).all()


@pytest.mark.slow
@pytest.mark.each_value
def test_states_are_edited_in_the_rows_of_the_lanes(model: SteppedModel) -> None:
    lanes = lane_pages(model, 1, 0, SLOTS, order_of(7))
    edits: Any = no_edits(LANES, types_in(model.structure, lanes.pool))
    site = state_sites(model.structure)[0]
    edit = edits[site.array]
    edit.layer[0], edit.unit[0, 0], edit.factor[0] = site.layer, True, -2.0
    edit.layer[1], edit.unit[1, 0], edit.replaced[1], edit.value[1] = site.layer, True, True, np.nan
    for other in edits.values():
        other.value[4] = np.nan  # of a lane without an edit
    after = model.edited(lanes.pool, SLOTS, edits, lanes.pages)
    for place, (before, new) in enumerate(zip(jax.tree.leaves(lanes.pool), jax.tree.leaves(after), strict=True)):
        expected = before.copy()
        if place == site.place:
            expected[SLOTS[0], 0] *= -2.0
            expected[SLOTS[1], 0] = np.nan
        assert new.tobytes() == expected.tobytes()


def test_states_that_are_edited_are_columns_of_the_page(root: Path) -> None:
    head = " | ".join(["| model", *(f"`{role}`" for role in EDITED)])
    assert head in (root / "docs" / "research.md").read_text()


Places = Callable[..., Any]


def _by(change: Callable[[Any], Any]) -> Callable[[Places], Places]:
    """Tokens are written by another table."""
    return lambda token_places: lambda table, *others: token_places(change(table), *others)


def _padding(change: Callable[[Any, Any, int], Any]) -> Callable[[Places], Places]:
    """Tokens of the padding are written to other pages."""

    def faulty(token_places: Places) -> Places:
        def wrong(table: Any, positions: Any, valid: Any, pages: int) -> Any:
            page, place = token_places(table, positions, valid, pages)
            return change(page, valid, pages), place

        return wrong

    return faulty


def _reads_by(change: Callable[[Any], Any]) -> Callable[[Places], Places]:
    """Pages are read by another table."""
    return lambda take_pages: lambda pool, pages: take_pages(pool, change(pages))


FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "written-by-the-table-of-the-next-lane": ("token_places", _by(lambda table: jnp.roll(table, 1, axis=0))),
    "written-by-swapped-tables": ("token_places", _by(lambda table: table[::-1])),
    "written-to-the-next-page": ("token_places", _by(lambda table: table + 1)),
    "written-by-place-in-the-table": ("token_places",
                                      _by(lambda table: jnp.zeros_like(table) + jnp.arange(BLOCKS, dtype=jnp.int32))),
    "padding-on-the-null-page": ("token_places", _padding(lambda page, valid, _: jnp.where(valid, page, 0))),
    "padding-on-the-last-page": ("token_places", _padding(lambda page, _, pages: jnp.minimum(page, pages - 1))),
    "read-by-the-table-of-the-next-lane": ("take_pages", _reads_by(lambda pages: jnp.roll(pages, 1, axis=0))),
    "read-of-the-next-page": ("take_pages", _reads_by(lambda pages: pages + 1)),
    "read-of-the-first-page": ("take_pages", _reads_by(lambda pages: jnp.ones_like(pages))),
    "read-of-the-largest-page": ("take_pages",
                                 _reads_by(lambda pages: jnp.broadcast_to(pages.max(axis=0), pages.shape))),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_page_tables_in_a_step_are_refused(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = SteppedModel("olmo_base", False, "off")
    lanes = lane_pages(model, TOKENS, 0, SLOTS, order_of(7))
    shape = model.shape(inputs_of("generate", TOKENS, lanes, np.ones(LANES, bool), 0), ROWS, PAGES)
    arguments = model.examples(shape)
    model.programs.planned(shape, arguments)
    name, faulty = FAULTS[fault]
    plant_fault(monkeypatch, f"models.mixers.kv_cache.{name}", faulty)
    with pytest.raises(IsolationError):
        model.programs.planned(shape, arguments)


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["auto", "off"])
@pytest.mark.parametrize("fault", ["stale", "swapped", "missing"])
def test_faults_of_a_host_table_show(fault: str, kernels: str) -> None:
    """A table of earlier pages, exchanged tables and missing pages change bits or raise."""
    model = SteppedModel("olmo_base", False, kernels)
    pages = lane_pages(model, TOKENS, 0, SLOTS, order_of(7))
    inputs = inputs_of("hidden", TOKENS, pages, np.ones(LANES, bool), 0)
    shape = model.shape(inputs, ROWS, PAGES)
    hidden, _ = model.run(shape, model.params, pages.pool, inputs)
    assert inputs.batch.pages is not None and pages.table is not None
    table = inputs.batch.pages.copy()
    if fault == "stale":
        table[1, 0] = np.setdiff1d(np.arange(1, PAGES), pages.table)[0]
    elif fault == "swapped":
        table[[1, 4]] = table[[4, 1]]
    else:
        table[2, 1] = 0
    wrong, written = model.run(
        shape, model.params, pages.pool, inputs._replace(batch=inputs.batch._replace(pages=table))
    )
    lanes = [lane for lane in range(LANES) if wrong[lane].tobytes() != hidden[lane].tobytes()]
    assert lanes == {"stale": [1], "swapped": [1, 4], "missing": [2]}[fault]
    for before, new in zip(*map(jax.tree.leaves, (pages.pool, written)), strict=True):
        if len(new) == PAGES:
            assert new[0].tobytes() == before[0].tobytes(), "the null page is written"
