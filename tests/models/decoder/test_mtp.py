"""MTP head: its state after chunked prefill, in lanes of all lengths, in reused rows."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import filled
from flax import nnx
from paged_caches import by_lane

from hybridlm.families import KVCache
from models import family_of, kv_blocks
from models.decoder.decoder import lane_info
from models.decoder.mtp import MtpDecoder, MtpState

TOKENS, CONTEXT = 9, 200
FIELDS: dict[str, Any] = {
    "model_type": "qwen3_5_text", "vocab_size": 41, "hidden_size": 16, "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 8, "intermediate_size": 24,
}  # fmt: skip


class After(NamedTuple):
    """A step's state, and the head's logits after one more token outside the state."""

    state: tuple
    logits: Any  # float32 [N, V]

    @property
    def head(self) -> MtpState:
        return self.state[-1]

    @property
    def cache(self) -> KVCache:
        return self.head.layer[0]


@pytest.fixture(scope="module")
def step() -> Any:
    """`step(tokens, lengths, positions, state, next) -> After`, compiled once for all tests."""
    family = family_of(FIELDS).with_head
    assert family is not None
    rng = np.random.default_rng(0)

    def value(name: str, shape: tuple[int, ...]) -> np.ndarray:
        array = rng.uniform(-1, 1, shape) if len(shape) == 1 else rng.normal(size=shape) / shape[-1] ** 0.5
        return array.astype(np.float32)

    model = filled(lambda: family.build(family.read_config(FIELDS), nnx.Rngs(0)), value)
    assert isinstance(model, MtpDecoder)
    graph, parameters = nnx.split(model)

    @jax.jit
    def run(parameters: Any, tokens: Any, lengths: Any, positions: Any, state: tuple, following: Any) -> After:
        model = nnx.merge(graph, parameters)
        blocks = jnp.int32(kv_blocks(CONTEXT))
        _, state = model(tokens, lengths, positions, state, blocks)
        head, end = state[-1], positions + lengths
        item = jnp.ones_like(lengths)
        tokens = following[:, None]
        updated, _ = model.mtp_forward(tokens, head.hidden[:, None], lane_info(tokens, item, end, blocks), head.layer)
        return After(state, model.logits(updated)[:, 0])

    return lambda *operands: jax.device_get(run(parameters, *operands))


LENGTHS = np.array([9, 5, 2, 1, 0], np.int32)
TEXT = np.random.default_rng(1).integers(41, size=(5, TOKENS)).astype(np.int32)
NEXT = np.arange(5, dtype=np.int32)
START = np.zeros(5, np.int32)


def rows(fill: float) -> tuple:
    """Rows as earlier sequences may have left them."""
    family = family_of(FIELDS).with_head
    assert family is not None
    model = nnx.eval_shape(lambda: family.build(family.read_config(FIELDS), nnx.Rngs(0)))
    state = jax.eval_shape(lambda: model.init_state(5, CONTEXT, jnp.float32))
    return jax.tree.map(lambda leaf: np.full(leaf.shape, fill, leaf.dtype), state)


@pytest.fixture(scope="module")
def full(step: Any) -> After:
    return step(TEXT, LENGTHS, START, rows(np.nan), NEXT)


def test_a_row_for_every_token_but_the_first(full: After) -> None:
    """The first token has no earlier hidden state; other rows and idle lanes are untouched."""
    for array in full.cache:
        assert array is not None
        written = np.asarray(np.isfinite(by_lane(array, 5)).all(axis=(1, 3)))
        assert [np.flatnonzero(written[lane]).tolist() for lane in range(5)] == [
            list(range(max(n - 1, 0))) for n in LENGTHS
        ]
    assert np.isfinite(full.head.hidden).all(axis=1).tolist() == [True] * 4 + [False]
    assert np.isfinite(full.logits).all()


@pytest.mark.parametrize("cut", [1, 2, 4, 8])
def test_chunked_prefill_leaves_the_rows_of_whole_prompts(step: Any, full: After, cut: int) -> None:
    """Lanes at different positions carry the previous hidden state into each step."""
    first = np.minimum(LENGTHS, [cut, cut, 1, 1, 0]).astype(np.int32)
    state = step(TEXT, first, START, rows(np.nan), NEXT).state
    rest = np.zeros_like(TEXT)
    for lane, count in enumerate(first):
        rest[lane, : TOKENS - count] = TEXT[lane, count:]
    result = step(rest, LENGTHS - first, first, state, NEXT)
    # the gated norm of a delta net divides by the size of small outputs
    for array, want in zip(jax.tree.leaves(result.head), jax.tree.leaves(full.head), strict=True):
        np.testing.assert_allclose(array, want, atol=5e-4)
    np.testing.assert_allclose(result.logits[:4], full.logits[:4], atol=5e-4)


def test_earlier_contents_of_rows_have_no_influence(step: Any, full: After) -> None:
    """The hidden state that a row carries is not looked at where a sequence begins."""
    for fill in (0.0, 7.0, np.inf):
        result = step(TEXT, LENGTHS, START, rows(fill), NEXT)
        assert result.logits[:4].tobytes() == full.logits[:4].tobytes()
        assert result.head.hidden[:4].tobytes() == full.head.hidden[:4].tobytes()


def test_lanes_do_not_see_each_other(step: Any, full: After) -> None:
    """Other tokens and NaN rows in the first lane change no other lane's bits."""
    text, state = TEXT.copy(), rows(0.0)
    text[0] = 40 - text[0]
    for leaf in jax.tree.leaves(state):
        leaf[0 if len(leaf) == 5 else slice(3)] = np.nan  # of pages the null page and the lane's two
    result = step(text, LENGTHS, np.array([5, 0, 0, 0, 0], np.int32), state, NEXT)
    assert np.isnan(result.logits[0]).any()
    assert result.logits[1:4].tobytes() == full.logits[1:4].tobytes()


def test_rows_past_the_sequence_are_dead(step: Any, full: After) -> None:
    """Rows of rejected drafts have no influence: they are at positions after the last token."""
    state = jax.tree.map(np.array, full.state)
    for array in state[-1].layer[0]:
        for lane, length in enumerate(LENGTHS):
            array[1 + 2 * lane, :, max(length - 1, 0) + 1 :] = array[2 + 2 * lane] = 1e6
    nobody = np.zeros(5, np.int32)
    assert step(TEXT, nobody, LENGTHS, state, NEXT).logits[:4].tobytes() == full.logits[:4].tobytes()
