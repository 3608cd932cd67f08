"""Scratch of verification over sampling: the recurrence's inputs, and no state per draft."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from patched_functions import record_calls
from planned_engines import planned_engine
from published import PUBLISHED

from hybridlm.families import LaneInfo, Recurrent, put_rows, take_rows

LANES, TOKENS, LAYERS = 8, 5, 1
FLOAT32 = 4


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a config: Qwen3.5-0.8B's delta rule in full size, one layer per kind."""
    text = PUBLISHED["Qwen3.5-0.8B"]["text_config"]
    small = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 64}
    layers = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
    path = tmp_path_factory.mktemp("plan") / "config.json"
    path.write_text(json.dumps({**PUBLISHED["Qwen3.5-0.8B"], "text_config": {**text, **small, **layers}}))
    return path


def needed_beside(config: Path) -> int:
    """Return scratch bytes of verification minus generation with equal numbers of tokens."""
    engine = planned_engine(config, lanes=LANES, context=256, dtype="float32", chunk=8, kernels="off")
    plans = [engine.planned(engine.shape(step, LANES, TOKENS, LANES)).plan for step in ("generate", "verify")]
    return plans[1].lower_bound - plans[0].lower_bound


def sizes(config: Path) -> tuple[int, int]:
    """Return bytes of the recurrence's inputs, and of a layer's state per token."""
    text = json.loads(config.read_text())["text_config"]
    heads, key, value = text["linear_num_value_heads"], text["linear_key_head_dim"], text["linear_value_head_dim"]
    channels = 2 * text["linear_num_key_heads"] * key + heads * value
    stored = LAYERS * LANES * TOKENS * (channels + 2 * heads) * FLOAT32
    return stored, LANES * TOKENS * heads * key * value * FLOAT32


@pytest.mark.slow
def test_verification_keeps_the_inputs_of_the_recurrence(config: Path) -> None:
    stored, states = sizes(config)
    assert stored <= needed_beside(config) < states


@pytest.mark.slow
def test_a_state_for_each_draft_is_seen(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Recurrent.commit

    def of_each(self: Recurrent, record: Any, info: LaneInfo, state: Any) -> Any:
        place = jnp.arange(TOKENS, dtype=jnp.int32)[None]
        rows, states = jax.tree.map(lambda pool: take_rows(pool, info.slots), state), []
        for count in range(TOKENS + 1):
            lengths = jnp.minimum(info.lengths, count)
            shorter = info._replace(lengths=lengths, valid=place < lengths[:, None], slots=None)
            states.append(right(self, record, shorter, rows))
        lanes = jnp.arange(LANES, dtype=jnp.int32)

        def last(old: jax.Array, *each: jax.Array) -> jax.Array:
            chosen = jnp.stack(each, axis=1).at[lanes, info.lengths].get(mode="fill", wrap_negative_indices=False)
            return jnp.where((info.lengths > 0).reshape((LANES,) + (1,) * (old.ndim - 1)), chosen, old)

        return jax.tree.map(lambda pool, row: put_rows(pool, info.slots, row), state, jax.tree.map(last, rows, *states))

    monkeypatch.setattr(Recurrent, "commit", of_each)
    assert needed_beside(config) >= sizes(config)[1]


@pytest.mark.parametrize(("step", "lanes", "tokens"), [("generate", 2, 1), ("verify", 16, TOKENS)])
def test_a_step_is_proved_once(
    config: Path, step: Any, lanes: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pass rewrites it: two reads or 16 slices are no lanes."""
    proofs = record_calls(monkeypatch, "ir_passes.proof.lane_proof.prove_jaxpr")
    engine = planned_engine(config, lanes=lanes, context=256, dtype="float32", chunk=8)
    assert engine.planned(engine.shape(step, lanes, tokens)).plan.size > 0
    assert len(proofs) == 1
