"""config.json of OLMo Hybrid: norms, the three-tensor convolution, and refused fields."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filled import made
from float64_checkpoint import Float64Checkpoint
from published import OLMO, read

from hybridlm.families import AttentionConfig, GatedDeltaNetConfig, MlpConfig, PostNorm, QkNorm, Rope
from models import family_of


def test_published_model() -> None:
    config = read(OLMO)
    assert config.unknown_keys == ()
    mixer, mlp = config.layers[0]
    assert mixer == GatedDeltaNetConfig(30, 30, 96, 192, 4, 1e-5, strongest_write=2.0) and mlp == MlpConfig(11008)
    attention = AttentionConfig(30, 30, 128, None, QkNorm(1e-6, all_heads=True))
    assert config.layers[3] == (PostNorm(attention), PostNorm(mlp))
    assert [layer == config.layers[3] for layer in config.layers] == ([False] * 3 + [True]) * 8


def test_sizes_that_are_not_given_follow_from_others() -> None:
    fields = {name: value for name, value in OLMO.items() if not name.startswith("linear_")}
    assert read(fields).layers == read(OLMO).layers


@pytest.mark.parametrize(("change", "theta"), [
    ({"rope_theta": 5e5}, 5e5),
    ({"rope_theta": None}, None),
    ({"rope_parameters": None}, None),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 1e4),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": None}}, None),
])  # fmt: skip
def test_positions_where_a_base_is_given(change: dict[str, Any], theta: float | None) -> None:
    config = read(OLMO | change)
    branch = config.layers[3][0]
    assert isinstance(branch, PostNorm) and isinstance(branch.inner, AttentionConfig)
    assert branch.inner.rope == (None if theta is None else Rope(128, theta)) and config.unknown_keys == ()


def test_the_convolution_is_the_same_however_it_is_cut() -> None:
    config = read(OLMO)
    weights = family_of(OLMO).weights(config)
    conv = next(weight for weight in weights if weight.path == ("layers", 0, "branches", 0, "inner", "conv1d"))
    full = np.arange(11520 * 4, dtype=np.float32).reshape(11520, 1, 4)
    cuts = []
    for source in conv.options:
        sizes = [shape[0] for shape in source.shapes.values()]
        parts = dict(zip(source.shapes, np.split(full, np.cumsum(sizes)[:-1]), strict=True))
        assert all(parts[name].shape == shape for name, shape in source.shapes.items())
        np.testing.assert_array_equal(made(source, full.shape, parts), full)
        cuts.append(sizes)
    assert cuts == [[2880, 2880, 5760], [3840, 3840, 3840]]


def test_transformers_still_cuts_it_in_thirds(root: Path) -> None:
    """The golden as saved by transformers: 48 channels for queries and keys, 96 for values."""
    tensors = Float64Checkpoint(root / "tests" / "golden" / "olmo_base").below("model.layers.0.linear_attn")
    sizes = {part: (len(tensors[f"{part}_proj.weight"]), len(tensors[f"{part}_conv1d.weight"])) for part in "qkv"}
    assert sizes == {"q": (48, 64), "k": (48, 64), "v": (96, 64)}
