"""The shares of several devices compute together what the whole model computes: every family, all kinds of meshes."""

from typing import Any

import jax
import numpy as np
import pytest
from comparison import TOLERANCES
from flax import nnx
from shares import (
    Axes,
    check_equal,
    contiguous,
    joined,
    on_devices,
    on_one_device,
    random_model,
    spread,
    tiny,
)

from models import Devices, Part, ShareError
from models.cut import rows

NEMOTRON = {"mamba_num_heads": 8, "n_groups": 2}
CASES: dict[str, dict[str, Any]] = {
    "sparse_base": {},
    "next_base": {},
    "dense_base": {},
    "lfm2_base": {},
    "lfm2_moe_base": {},
    "mamba2_base": {},
    "nemotron_dense": NEMOTRON,
    "nemotron_latent": NEMOTRON,
    "granite_experts": {},
    "bamba_one_group": {},
    "falcon_base": {},
    "kimi_base": {},
    "ling_base": {},
    "olmo_base": {},
    "olmo_grouped": {},
}
MESHES = [(1, 2, 1), (1, 4, 1), (2, 2, 2), (1, 1, 8)]


def mesh_name(axes: Axes) -> str:
    return "x".join(map(str, axes))


@pytest.mark.long
@pytest.mark.parametrize("axes", MESHES, ids=mesh_name)
@pytest.mark.parametrize("name", CASES)
def test_shares_compute_what_the_whole_model_computes(name: str, axes: Axes) -> None:
    """Hidden states, logits and states after a prompt in two pieces, a token, and drafts of which some count."""
    model = tiny(name, **CASES[name])
    whole = random_model(model)
    check_equal(on_devices(whole, model, axes), on_one_device(whole), TOLERANCES[model.family.name])


@pytest.mark.long
def test_one_run_of_rows_is_no_share() -> None:
    """The mistake that `Cut` is there for: [q | k | v] cut as one run of rows gives each device other heads' rows."""
    model = tiny("sparse_base")
    whole = random_model(model)
    with pytest.raises(AssertionError, match="hidden of step 0"):
        check_equal(on_devices(whole, model, (1, 2, 1), contiguous), on_one_device(whole), 2e-3)


@pytest.mark.parametrize("devices", [Devices(2, 1), Devices(4, 2)], ids=["2x1", "4x2"])
@pytest.mark.parametrize("name", CASES)
def test_cuts_leave_the_shapes_of_a_share(name: str, devices: Devices) -> None:
    """Every parameter and every array of the state, of each device."""
    model = tiny(name, **CASES[name])
    whole = nnx.eval_shape(lambda: model.family.build(model.config, nnx.Rngs(0)))
    share = nnx.eval_shape(lambda: model.family.build(model.config.share(devices), nnx.Rngs(0)))
    cuts = whole.cuts()
    parts = dict(nnx.to_flat_state(nnx.state(share, nnx.Param)))
    flat: list[tuple[Any, Any]] = list(nnx.to_flat_state(nnx.state(whole, nnx.Param)))
    for path, variable in flat:
        shape = list(variable.shape)
        for cut in cuts.get(path, ()):
            assert cut.size == shape[cut.dim], path
            pieces = cut.indices(devices.along(cut.axis) - 1, devices.along(cut.axis))
            shape[cut.dim] = sum(piece.stop - piece.start for piece in pieces)
        assert tuple(shape) == parts[path].shape, path
    for array, part in zip(jax.tree.leaves(whole.state_arrays()), jax.tree.leaves(share.state_arrays()), strict=True):
        assert array.split == part.split and array.dtype == part.dtype
        for (dim, size), (_, own) in zip(array.sizes, part.sizes, strict=True):
            if dim != array.split:
                assert size == own
        if array.cut is not None:
            pieces = array.cut.indices(0, devices.model)
            assert dict(part.sizes)[array.split] == sum(piece.stop - piece.start for piece in pieces)


def test_pieces_of_a_cut() -> None:
    """Queries of three heads are split, the key of one head is repeated."""
    cut = rows(Part(6, 3), Part(2, 1, repeats=True))
    assert [cut.indices(device, 3) for device in range(3)] == [
        [slice(2 * device, 2 * device + 2), slice(6, 8)] for device in range(3)
    ]
    whole = np.arange(8)
    assert spread(whole, (cut,), Devices(3)).tolist() == [0, 1, 6, 7, 2, 3, 6, 7, 4, 5, 6, 7]
    np.testing.assert_array_equal(joined(spread(whole, (cut,), Devices(3)), cut, Devices(3)), whole)
    with pytest.raises(ValueError, match="3 units cannot be split over 2 devices along model"):
        cut.indices(0, 2)


def test_sizes_that_do_not_divide_are_refused_together() -> None:
    config = tiny("sparse_base", vocab_size=331).config
    with pytest.raises(ShareError) as error:
        config.share(Devices(8, 3))
    assert error.value.faults == [
        "DecoderConfig.vocab_size = 331 is not divided by 8 devices along 'model'; 1, 331 would do",
        "GatedDeltaNetConfig.value_heads = 4 is not divided by 8 devices along 'model'; 1, 2, 4 would do",
        "RouterConfig.experts = 8 is not divided by 3 devices along 'expert'; 1, 2, 4, 8 would do",
        "AttentionConfig.heads = 4 is not divided by 8 devices along 'model'; 1, 2, 4 would do",
    ]
    assert str(error.value).endswith("It can be split over model = 1 and over expert = 1, 2, 4, 8.")
    with pytest.raises(ValueError, match="cuts are those of the whole model"):
        small = tiny("dense_base")
        nnx.eval_shape(lambda: small.family.build(small.config.share(Devices(2)), nnx.Rngs(0))).cuts()
