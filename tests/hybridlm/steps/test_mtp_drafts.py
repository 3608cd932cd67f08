"""MTP drafts and the head's state after partly accepted drafts, against float64 from scratch."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from float64_reference import Float64Model
from paged_caches import by_lane
from stepped_models import greedy_inputs
from with_head import load_with_head

from hybridlm.compiler.measure import unaccepted_reach
from hybridlm.steps.contract import page_table, slot_map, step_contract
from hybridlm.steps.generate import LAST_SAMPLED
from hybridlm.steps.operands import Batch
from hybridlm.steps.structure import Rows, flatten
from hybridlm.steps.verify import verify_step

LANES, TOKENS, DRAFTS = 4, 8, 3
GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "golden" / "dense_multimodal"
PROMPTS = [[79, 59, 47, 25, 28, 3, 6, 1], [50, 52, 86], [36], [46, 56, 90, 67, 58]]
"""The most likely tokens after them, and the head's, lead by more than the tolerance."""

ROWS = np.arange(LANES, dtype=np.int32)
PAGES = 1 + ROWS[:, None]


class Lanes:
    """The rows of four sequences, and a step that verifies and drafts, compiled once."""

    def __init__(self) -> None:
        model = load_with_head(GOLDEN)
        structure, self.params = flatten(model)
        self.step = jax.jit(verify_step(structure, None, None, DRAFTS))
        self.model = model

    def rows(self) -> Rows:
        layers = self.model.init_state(LANES, 64, jnp.float32)
        poisoned = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), layers)
        return Rows(poisoned, jnp.zeros((LANES, 1), jnp.int32))

    def run(self, rows: Rows, feeds: list[list[int]], positions: list[int], drafts: list[int]) -> Any:
        tokens = np.zeros((LANES, TOKENS), np.int32)
        for lane, feed in enumerate(feeds):
            tokens[lane, : len(feed)] = feed
        lengths, begins = (np.array(x, np.int32) for x in ([len(feed) for feed in feeds], positions))
        batch = Batch(tokens, lengths, begins, ROWS, np.int32(1), PAGES)
        inputs = greedy_inputs(batch, np.array(drafts, np.int32))
        (accepted, sampled), rows = self.step(self.params, rows, inputs)
        return jax.device_get(accepted), jax.device_get(sampled), rows


@pytest.fixture(scope="module")
def lanes() -> Lanes:
    return Lanes()


@pytest.mark.long
def test_mtp_drafts_continue_from_the_accepted_tokens(lanes: Lanes) -> None:
    """Prompts of all lengths; all, some or no drafts are right; one lane is idle."""
    reference = Float64Model(GOLDEN)

    def continued(tokens: list[int], count: int) -> list[int]:
        for _ in range(count):
            tokens = [*tokens, int(reference.forward(tokens).logits[-1].argmax())]
        return tokens

    accepted, sampled, rows = lanes.run(lanes.rows(), PROMPTS, [0] * LANES, [0] * LANES)
    assert accepted.tolist() == [len(prompt) for prompt in PROMPTS]
    texts = [continued(prompt, 4) for prompt in PROMPTS]
    for lane, prompt in enumerate(PROMPTS):
        prefix = texts[lane][: len(prompt) + 1]
        assert sampled.token[lane, len(prompt) - 1] == prefix[-1]
        assert sampled.mtp_drafts[lane].tolist() == reference.mtp_drafts(prefix, DRAFTS)
    # of three drafts all are right, or the first, or none; the last lane is idle
    tails = [text[-3:] for text in texts]
    wrong = [(token + 1) % 97 for token in tails[1]]
    drafts = [tails[0], [tails[1][0], *wrong[1:]], [(tails[2][0] + 1) % 97, *tails[2][1:]]]
    feeds = [[LAST_SAMPLED, *draft] for draft in drafts] + [[]]
    positions = [len(prompt) for prompt in PROMPTS]
    old_rows = jax.device_get(rows)
    accepted, sampled, rows = lanes.run(rows, feeds, positions, [3, 3, 3, 0])
    assert accepted.tolist() == [4, 2, 1, 0]
    for lane, count in enumerate(accepted[:3]):
        prefix = continued(PROMPTS[lane], count + 1)
        assert sampled.token[lane, count - 1] == prefix[-1]
        assert sampled.mtp_drafts[lane].tolist() == reference.mtp_drafts(prefix, DRAFTS)
        # the next token is paired with the hidden state of the last accepted token
        hidden = reference.hidden(prefix[:-1])[0][-1]
        np.testing.assert_allclose(rows.layers[-1].hidden[lane], hidden, atol=1e-3)
    for leaf, old_leaf in zip(jax.tree.leaves(rows), jax.tree.leaves(old_rows), strict=True):
        assert by_lane(leaf, LANES)[3].tobytes() == by_lane(old_leaf, LANES)[3].tobytes()
    # a step without drafts after them, in rows with states of rejected drafts
    accepted, sampled, rows = lanes.run(
        rows, [[LAST_SAMPLED]] * 4, [p + a for p, a in zip(positions, accepted, strict=True)], [0] * 4
    )
    for lane, count in enumerate((6, 4, 3, 2)):
        prefix = continued(PROMPTS[lane], count)
        assert sampled.token[lane, 0] == prefix[-1]
        assert sampled.mtp_drafts[lane].tolist() == reference.mtp_drafts(prefix, DRAFTS)


@pytest.mark.long
def test_the_carried_hidden_state_is_of_accepted_tokens_only(lanes: Lanes) -> None:
    """Other tokens after the accepted ones change only cache positions after them."""
    _, sampled, rows = lanes.run(lanes.rows(), PROMPTS, [0] * LANES, [0] * LANES)
    tokens = np.full((LANES, TOKENS), 7, np.int32)
    tokens[:, 0] = LAST_SAMPLED
    tokens[0, 1] = sampled.mtp_drafts[0][0]
    lengths, positions = (np.array(x, np.int32) for x in ([5, 4, 2, 1], [len(prompt) for prompt in PROMPTS]))
    batch = Batch(tokens, lengths, positions, ROWS, np.int32(1), PAGES)
    args = lanes.params, rows, greedy_inputs(batch, lengths - 1)
    structure, _ = flatten(lanes.model)
    step = verify_step(structure, None, None, DRAFTS)
    caches = (".key", ".value")
    reach = unaccepted_reach(
        step,
        args,
        step_contract(True, structure.arrays, slot_map(LANES), page_table(1 + LANES)),
        {"args[2].batch.tokens": 1},
        lambda path: path.endswith(caches),
    )
    assert reach.compared and not reach.reached
