"""Tensor and expert parallel models compute the whole model: every family and mesh."""

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparison import TOLERANCES
from flax import nnx
from shares import (
    BLOCKS,
    CONTEXT,
    LANES,
    Axes,
    Steps,
    Tiny,
    check_equal,
    contiguous,
    gates_in_turn,
    groups_in_turn,
    joined,
    mesh_of,
    on_devices,
    on_one_device,
    one_token,
    operands,
    random_model,
    scenario,
    spread,
    tiny,
)

from models import Decoder, Devices, Segment, ShardedDim, ShardingError
from models.sharding.devices import all_reduce
from models.sharding.sharded_dim import shard_outputs

NEMOTRON = {"mamba_num_heads": 8, "n_groups": 2}
CASES: dict[str, dict[str, Any]] = {
    "sparse_base": {}, "next_base": {}, "dense_base": {}, "lfm2_base": {}, "lfm2_moe_base": {}, "lfm3_base": {},
    "indexed_base": {},
    "lara_base": {}, "mamba2_base": {}, "nemotron_dense": NEMOTRON, "nemotron_latent": NEMOTRON,
    "granite_experts": {}, "bamba_one_group": {}, "falcon_base": {}, "kimi_base": {}, "ling_base": {},
    "ling_query_rank": {}, "ling_lightning": {"num_attention_heads": 8}, "minimax_base": {}, "olmo_base": {},
    "gigachat_base": {"linear_num_value_heads": 8, "num_attention_heads": 8, "num_key_value_heads": 8},
    "alice_base": {},
    "olmo_grouped": {}, "zamba2_base": {}, "zamba2_blocks": {},
}  # fmt: skip
MESHES: list[tuple[str, Axes]] = [
    *((name, (2, 2, 2)) for name in CASES),
    # fewer groups of heads than devices: of two, of one; one norm over all heads
    *(
        (name, (1, 4, 1))
        for name in (
            "sparse_base",
            "mamba2_base",
            "bamba_one_group",
            "nemotron_latent",
            "olmo_grouped",
            "lfm3_base",
            "lara_base",
            "ling_lightning",
            "minimax_base",
            "indexed_base",
            "gigachat_base",
            "alice_base",
        )  # fmt: skip
    ),
    *((name, (1, 1, 8)) for name in ("sparse_base", "kimi_base")),
    ("sparse_base", (1, 2, 1)),
]
HEADS = ("next_base", "dense_base")


@functools.cache
def alone(name: str, head: bool) -> tuple[Tiny, Decoder, Steps]:
    """A model with random parameters, and its steps on one device."""
    model = tiny(name, head, **CASES[name])
    full = random_model(model)
    return model, full, on_one_device(full)


@pytest.mark.long
@pytest.mark.parametrize(("name", "axes"), sorted(MESHES), ids=str)
def test_shards_and_the_whole_model_compute_the_same(name: str, axes: Axes) -> None:
    """Hidden states, logits and states after a two-part prompt, a token, and drafts."""
    model, full, expected = alone(name, False)
    check_equal(on_devices(full, model, axes), expected, TOLERANCES[model.family.name])


@pytest.mark.long
@pytest.mark.parametrize(("name", "axes"), [("next_base", (2, 2, 2)), ("dense_base", (1, 4, 1))], ids=str)
def test_shards_of_models_with_a_head(name: str, axes: Axes) -> None:
    """Its rows, after steps of every kind, and a draft from them."""
    model, full, expected = alone(name, True)
    check_equal(on_devices(full, model, axes), expected, TOLERANCES[model.family.name])


@pytest.mark.slow
def test_shards_compute_a_token() -> None:
    """Gated delta net, attention and experts, over both axes."""
    model = tiny("sparse_base")
    full = random_model(model)
    check_equal(on_devices(full, model, (1, 2, 2), one_token), on_one_device(full, one_token), 2e-3)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "axes", "recut"),
    [
        pytest.param("sparse_base", (1, 2, 1), contiguous, id="[q | k | v] as one run of rows"),
        pytest.param("next_base", (1, 2, 1), gates_in_turn(4), id="vLLM#36242: gates of other heads"),
        pytest.param("mamba2_base", (1, 4, 1), groups_in_turn, id="vLLM#13660: B and C of another group"),
    ],
)
def test_shards_of_other_units_are_found(name: str, axes: Axes, recut: Callable[[ShardedDim], ShardedDim]) -> None:
    """Right shapes with rows of other heads: the mistakes that `ShardedDim` prevents."""
    model = tiny(name, **CASES[name])
    full = random_model(model)
    expected, tolerance = on_one_device(full, one_token), TOLERANCES[model.family.name]
    check_equal(on_devices(full, model, axes, one_token), expected, tolerance)
    with pytest.raises(AssertionError, match="hidden of step 0"):
        check_equal(on_devices(full, model, axes, one_token, recut), expected, tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "next_base" else pytest.mark.long) for name in CASES]
)
def test_one_device_causes_no_equation(name: str) -> None:
    """A whole model has no collective and no mark of varying values in its program."""
    model = tiny(name, name in HEADS, **CASES[name])
    graph, params = nnx.split(nnx.eval_shape(lambda: model.family.build(model.config, nnx.Rngs(0))))

    def run(params: Any, *operands: Any) -> Steps:
        full = nnx.merge(graph, params)
        return scenario(full, full.init_state(LANES, CONTEXT, jnp.float32), *operands)

    program = str(jax.make_jaxpr(run)(params, operands(64), jnp.int32(BLOCKS)))
    assert not re.findall(r"psum|pcast|pvary|shard_map|axis_index|all_gather|all_to_all", program)


def test_replicated_outputs_are_not_summed() -> None:
    """The sum would count it several times, and nothing would say so."""
    over = jax.sharding.PartitionSpec("model")
    on = functools.partial(jax.shard_map, mesh=mesh_of((1, 2, 1)), out_specs=jax.sharding.PartitionSpec())
    x = jnp.arange(4.0)
    np.testing.assert_array_equal(on(lambda x: all_reduce(x, ("model",)), in_specs=over)(x), [2, 4])
    with pytest.raises(ValueError, match="a part from each of them, found a value that is the same along model"):
        on(lambda x: all_reduce(x, ("model",)), in_specs=jax.sharding.PartitionSpec())(x)


@pytest.mark.each_value
@pytest.mark.parametrize(
    "devices", [pytest.param(Devices(2, 1), marks=pytest.mark.long, id="2x1"), pytest.param(Devices(4, 2), id="4x2")]
)
@pytest.mark.parametrize("name", CASES)
def test_shard_specs_give_the_shapes_of_a_shard(name: str, devices: Devices) -> None:
    """Shapes of every parameter and every array of the state of a device."""
    model = tiny(name, **CASES[name])
    full = nnx.eval_shape(lambda: model.family.build(model.config, nnx.Rngs(0)))
    share = nnx.eval_shape(lambda: model.family.build(model.config.shard(devices), nnx.Rngs(0)))
    cuts = full.sharded_dims()
    parts = dict(nnx.to_flat_state(nnx.state(share, nnx.Param)))
    flat: list[tuple[Any, Any]] = list(nnx.to_flat_state(nnx.state(full, nnx.Param)))
    for path, variable in flat:
        shape = list(variable.shape)
        for cut in cuts.get(path, ()):
            assert cut.size == shape[cut.dim], path
            pieces = cut.slices(devices.along(cut.axis) - 1, devices.along(cut.axis))
            shape[cut.dim] = sum(piece.stop - piece.start for piece in pieces)
        assert tuple(shape) == parts[path].shape, path
    for array, part in zip(jax.tree.leaves(full.state_arrays()), jax.tree.leaves(share.state_arrays()), strict=True):
        assert array.sharded == part.sharded and array.dtype == part.dtype
        for (dim, size), (_, local) in zip(array.sizes, part.sizes, strict=True):
            if dim != array.sharded:
                assert size == local
        if array.sharded_dim is not None:
            pieces = array.sharded_dim.slices(0, devices.model)
            assert dict(part.sizes)[array.sharded] == sum(piece.stop - piece.start for piece in pieces)


def test_slices_of_a_sharded_dimension() -> None:
    """Queries of three heads are sharded, the key of one head is replicated (GQA)."""
    cut = shard_outputs(Segment(6, 3), Segment(2, 1, replicable=True))
    assert [cut.slices(device, 3) for device in range(3)] == [
        [slice(2 * device, 2 * device + 2), slice(6, 8)] for device in range(3)
    ]
    full = np.arange(8)
    assert spread(full, (cut,), Devices(3)).tolist() == [0, 1, 6, 7, 2, 3, 6, 7, 4, 5, 6, 7]
    np.testing.assert_array_equal(joined(spread(full, (cut,), Devices(3)), cut, Devices(3)), full)
    with pytest.raises(ValueError, match="3 units cannot be split over 2 devices along model"):
        cut.slices(0, 2)


def test_sizes_that_do_not_divide_are_refused_together() -> None:
    config = tiny("sparse_base", vocab_size=331).config
    with pytest.raises(ShardingError) as error:
        config.shard(Devices(8, 3))
    assert error.value.faults == [
        "DecoderConfig.vocab_size = 331 is not divided by 8 devices along 'model'; 1 would do",
        "GatedDeltaNetConfig.value_heads = 4 is not divided by 8 devices along 'model'; 1, 2, 4 would do",
        "RouterConfig.experts = 8 is not divided by 3 devices along 'expert'; 1, 2, 4, 8 would do",
        "AttentionConfig.heads = 4 is not divided by 8 devices along 'model'; 1, 2, 4 would do",
    ]
    assert str(error.value).endswith("It can be split over model = 1 and over expert = 1, 2, 4, 8.")


def test_only_whole_models_are_sharded() -> None:
    dense = tiny("dense_base")
    with pytest.raises(ShardingError, match=r"over model = 1, 2, 4 and over expert = anything\."):
        dense.config.shard(Devices(3, 2))
    share = dense.config.shard(Devices(2))
    with pytest.raises(
        ValueError, match=r"expected the config of a whole model, got the config of a shard of Devices\(model=2"
    ):
        share.shard(Devices(2))
    with pytest.raises(ValueError, match="whole model"):
        nnx.eval_shape(lambda: dense.family.build(share, nnx.Rngs(0))).sharded_dims()
