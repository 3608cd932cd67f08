"""Planned memory of a gradient of `LM.forward` for an absent model."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from planned_engines import planned_engine
from published import PUBLISHED

from hybridlm.forward import ForwardSettings, lane_types, run
from models import kv_blocks

TOKENS, CHUNK = 512, 128


def memory(compiled: Any) -> int:
    """Return the bytes that a program needs: its arguments, its results and its scratch."""
    memory_analysis = compiled.memory_analysis()
    aliased = memory_analysis.alias_size_in_bytes
    return (
        memory_analysis.argument_size_in_bytes
        + memory_analysis.output_size_in_bytes
        + memory_analysis.temp_size_in_bytes
        - aliased
    )


@pytest.mark.long
@pytest.mark.parametrize("layers", [4, 24])
def test_a_gradient_needs_little_more_than_the_forward_pass(layers: int, tmp_path: Path) -> None:
    """512 float32 tokens: at most 2.5 times the forward memory, plus gradients."""
    fields = PUBLISHED["Qwen3.5-0.8B"]
    text = fields["text_config"]
    text = text | {"num_hidden_layers": layers, "layer_types": text["layer_types"][:layers]}
    (tmp_path / "config.json").write_text(json.dumps(fields | {"text_config": text}))
    engine = planned_engine(tmp_path / "config.json", lanes=1, context=4096, dtype="float32")
    structure, params, rows = engine.programs.structure, engine.params, engine.row_arrays
    types = lane_types(rows.model.state_arrays(), rows.abstract(1, 1).layers, 4096)
    settings = ForwardSettings(((CHUNK, -(-TOKENS // CHUNK)),), 1, 1, kv_blocks(TOKENS), types, False, False, None)
    tokens, start = jax.ShapeDtypeStruct((1, TOKENS), jnp.int32), np.int32(0)
    logprobs = lambda params, tokens: run(structure, params, tokens, None, None, start, settings)[0]
    loss = lambda params, tokens: -jnp.mean(logprobs(params, tokens)[:, :-1])
    forward = memory(jax.jit(logprobs).lower(params, tokens).compile())
    gradient = memory(jax.jit(jax.grad(loss)).lower(params, tokens).compile())
    sizes = sum(param.size * param.dtype.itemsize for param in params)
    assert forward > sizes
    assert gradient <= 2.5 * forward + sizes
