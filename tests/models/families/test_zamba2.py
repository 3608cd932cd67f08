"""config.json and tensors of Zamba2: blocks with one set of parameters, spellings, refusals."""

import dataclasses
from typing import Any

import jax
from flax import nnx
from published import read
from published_mamba import ZAMBA2
from tiny_variants import variant

from hybridlm.families import Mamba2Config, Rope, SharedBlockConfig
from models import family_of

TINY: dict[str, Any] = variant("zamba2_blocks").config


def test_layers_of_the_published_model() -> None:
    config = read(ZAMBA2)
    calls = {i: c for i, (c,) in enumerate(config.layers) if isinstance(c, SharedBlockConfig)}
    assert list(calls) == ZAMBA2["hybrid_layer_ids"] and [c.block for c in calls.values()] == [0, 1] * 4 + [0]
    (call,) = {dataclasses.replace(c, block=0) for c in calls.values()}
    assert (call.rank, call.attention_adapters, call.mlp.width, call.mlp.activation) == (128, False, 10240, "geglu")
    assert (call.attention.heads, call.attention.head_dim, call.attention.rope) == (32, 160, None)
    assert call.attention.scale == 80**-0.5 and config.tied and config.max_position_embeddings == 4096
    assert {c for (c,) in config.layers if c not in calls.values()} == {call.mamba}
    assert call.mamba == Mamba2Config(80, 64, 1, 64, 4, 1e-5)


def test_each_block_is_in_memory_once() -> None:
    """Parameters of two blocks with three calls: one description, path and array each."""
    config, family = read(TINY), family_of(TINY)
    model = family.abstract(config)
    paths = {path for path, _ in nnx.to_flat_state(nnx.state(model, nnx.Param))}
    described = [weight.path for weight in family.weights(config)]
    assert sorted(map(str, described)) == sorted(map(str, paths))
    blocks = {path[1] for path in paths if "block" in path}
    assert blocks == {1, 2} and {path[1] for path in paths if "mlp_adapters" in path} == {1, 2, 3}
    graph, params = nnx.split(model)
    merged = nnx.merge(graph, params)
    first, second, third = (merged.layers[i].branches[0].inner for i in (1, 2, 3))
    assert first.block is third.block and first.block is not second.block
    assert first.mlp_adapters is not third.mlp_adapters
    states = jax.tree.leaves(model.state_arrays())
    assert sum(array.grows for array in states) == 2 * 3  # keys and values of each call


def test_names_of_a_block_after_any_of_its_layers() -> None:
    """Programs that save shared tensors once do not agree on the layer that names them."""
    named = {weight.path: weight for weight in family_of(TINY).weights(read(TINY))}
    block = named["layers", 1, "branches", 0, "inner", "block", "attention", "q_proj"]
    names = [f"model.layers.{i}.shared_transformer.self_attn.q_proj.weight" for i in (1, 3)]
    assert [list(option.shapes) for option in block.options] == [[name] for name in names]
    adapter = named["layers", 3, "branches", 0, "inner", "mlp_adapters", "up_proj", "up"]
    names = [f"model.layers.{i}.shared_transformer.feed_forward.gate_up_proj_adapter_list.2.1.weight" for i in (1, 3)]
    assert [list(option.shapes) for option in adapter.options] == [[name] for name in names]


def test_both_spellings_are_one_model() -> None:
    older = TINY | {"layers_block_type": ["mamba", "hybrid", "hybrid", "hybrid"], "time_step_limit": None}
    assert read(older) == read(TINY)
    newer = {name: value for name, value in TINY.items() if name != "layers_block_type"}
    assert read(newer | {"layer_types": TINY["layers_block_type"]}) == read(TINY)


def test_rope_and_the_floor_of_time_steps() -> None:
    fields = {"use_mem_rope": True, "rope_theta": 5e3, "hf_compat_dt_floor": True, "time_step_min": 0.01}
    (_, (call,), *_) = read(TINY | fields).layers
    assert isinstance(call, SharedBlockConfig) and call.attention.rope == Rope(32, 5e3)
    assert call.mamba.step_limits[0] == 0.01
