"""Parameters and checkpoint tensors: one description each, built by the file's layout."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from filled import made
from flax import nnx

from hybridlm.families import AttentionConfig, MlpConfig, MoeConfig
from models import ConfigError, Family, family_of
from models.weights.sources import Weight, WeightSource, rows, stacked, tensor

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "golden"
NAMES = sorted(path.name for path in GOLDEN.iterdir())
FAMILIES = ("qwen3_next", "qwen3_5", "qwen3_5_moe")


def tiny(family: str, ratio: int, tied: bool = False) -> dict[str, Any]:
    """A config with all sizes different, so that dimensions cannot be confused."""
    return {
        "model_type": family, "vocab_size": 41, "hidden_size": 10, "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_attention_heads": 6,
        "num_key_value_heads": 3, "head_dim": 8, "linear_num_key_heads": 3, "linear_num_value_heads": 3 * ratio,
        "linear_key_head_dim": 5, "linear_value_head_dim": 7, "linear_conv_kernel_dim": 4, "intermediate_size": 13,
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 9, "shared_expert_intermediate_size": 11,
        "mlp_only_layers": [1] if family == "qwen3_next" else [], "tie_word_embeddings": tied,
    }  # fmt: skip


def described(family: Family, config: Mapping[str, Any]) -> dict[tuple, Weight]:
    weights = family.weights(family.read_config(config))
    by_path = {weight.path: weight for weight in weights}
    assert len(by_path) == len(weights)
    return by_path


def with_head(config: Mapping[str, Any]) -> Family:
    family = family_of(config).with_head
    assert family is not None
    return family


@pytest.mark.each_value
@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("ratio", [1, 2, 4])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_parameter_is_described(name: str, ratio: int, tied: bool, head: bool) -> None:
    config = tiny(name, ratio, tied)
    family = with_head(config) if head else family_of(config)
    model = nnx.eval_shape(lambda: family.build(family.read_config(config), nnx.Rngs(0)))
    built = {path: variable.get_value() for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param))}
    weights = described(family, config)
    assert {path: weight.shape for path, weight in weights.items()} == {p: a.shape for p, a in built.items()}
    assert {path for path, weight in weights.items() if weight.float32} == {
        path for path, array in built.items() if len(array.shape) == 1
    }
    assert (("lm_head",) in weights) is not tied


@pytest.mark.parametrize("ratio", [1, 2, 4])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_option_builds_the_shape_it_says(name: str, ratio: int) -> None:
    for weight in described(with_head(tiny(name, ratio)), tiny(name, ratio)).values():
        for source in weight.options:
            assert all(name.startswith(("model.", "lm_head.", "mtp.")) for name in source.shapes)
            arrays = {name: np.zeros(shape, np.float32) for name, shape in source.shapes.items()}
            made(source, weight.shape, arrays)


@pytest.mark.parametrize("name", NAMES)
def test_names_match_the_files_that_transformers_wrote(name: str) -> None:
    """Every tensor is needed, skipped, or of one of two layouts; none is missing."""
    config = json.loads((GOLDEN / name / "config.json").read_text())
    stored: dict[str, tuple[int, ...]] = {}
    for file in (GOLDEN / name).glob("*.safetensors"):
        data = file.read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        stored |= {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    families = [family_of(config)]
    if "mtp.fc.weight" in stored:
        families.append(with_head(config))
    for family in families:
        saved = {family.canonical(name): shape for name, shape in stored.items() if not family.skips(name)}
        used: set[str] = set()
        for weight in described(family, config).values():
            (source,) = [option for option in weight.options if option.shapes.items() <= saved.items()]
            assert {name: saved[name] for name in source.shapes} == source.shapes
            used |= source.shapes.keys()
        assert used | family.constants(family.read_config(config)).keys() == saved.keys()


@pytest.mark.parametrize("ratio", [1, 2, 4])
def test_fused_projections_are_grouped_by_key_head(ratio: int) -> None:
    key_heads, key_size, value_size, hidden = 3, 5, 7, 2
    rng = np.random.default_rng(ratio)
    qkvz = rng.normal(size=(2 * key_heads * (key_size + ratio * value_size), hidden))
    ba = rng.normal(size=(2 * key_heads * ratio, hidden))

    # As transformers takes the outputs of the fused projections apart: per key head q, k, and its values and gates.
    grouped = qkvz.reshape(key_heads, 2 * key_size + 2 * ratio * value_size, hidden)
    q, k = grouped[:, :key_size], grouped[:, key_size : 2 * key_size]
    v = grouped[:, 2 * key_size : 2 * key_size + ratio * value_size].reshape(ratio * key_heads, value_size, hidden)
    z = grouped[:, 2 * key_size + ratio * value_size :].reshape(ratio * key_heads, value_size, hidden)
    pairs = ba.reshape(key_heads, 2, ratio, hidden)
    want = {
        "in_proj_qkv": np.concatenate([part.reshape(-1, hidden) for part in (q, k, v)]),
        "in_proj_z": z.reshape(-1, hidden),
        "in_proj_b": pairs[:, 0].reshape(-1, hidden),
        "in_proj_a": pairs[:, 1].reshape(-1, hidden),
    }

    text = tiny("qwen3_next", ratio) | {"hidden_size": hidden}
    weights = described(family_of(text), text)
    files = {"in_proj_qkvz": qkvz, "in_proj_ba": ba}
    for part, array in want.items():
        (source,) = weights[("layers", 0, "branches", 0, "inner", part)].options
        tensors = {name: files[name.split(".")[-2]] for name in source.shapes}
        np.testing.assert_array_equal(made(source, array.shape, tensors), array)


@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5_moe"])
def test_both_layouts_of_experts_are_the_same_parameters(name: str) -> None:
    config = tiny(name, 2)
    rng = np.random.default_rng(0)
    weights = described(family_of(config), config)
    (moe,) = {forward for _, forward in family_of(config).read_config(config).layers if isinstance(forward, MoeConfig)}
    index = ("layers", 2, "branches", 1, "inner")
    prefix = "model.layers.2.mlp.experts"
    single = {
        f"{prefix}.{expert}.{part}_proj.weight": rng.normal(size=(10, moe.width) if part == "down" else (moe.width, 10))
        for expert in range(moe.router.experts)
        for part in ("gate", "up", "down")
    }
    gates, ups, downs = (
        np.stack([single[f"{prefix}.{expert}.{part}_proj.weight"] for expert in range(moe.router.experts)])
        for part in ("gate", "up", "down")
    )
    fused = {f"{prefix}.gate_up_proj": np.concatenate([gates, ups], axis=1), f"{prefix}.down_proj": downs}
    for parameter in ("gate_up_proj", "down_proj"):
        full, parts = weights[(*index, parameter)].options
        assert full == WeightSource({f"{prefix}.{parameter}": fused[f"{prefix}.{parameter}"].shape})
        assert {name: single[name].shape for name in parts.shapes} == parts.shapes
        expected = fused[f"{prefix}.{parameter}"]
        np.testing.assert_array_equal(made(parts, expected.shape, single), expected)


def test_tensor() -> None:
    weight = tensor(("a", 0), "model.a.weight", (2, 3), float32=True)
    assert weight == Weight(("a", 0), (2, 3), (WeightSource({"model.a.weight": (2, 3)}),), True)
    assert not tensor(("a",), "b", (1,)).float32


def test_rows() -> None:
    array = np.arange(12).reshape(4, 3)
    source = rows("x", (4, 3), np.array([3, 0, 0]))
    assert source.shapes == {"x": (4, 3)}
    np.testing.assert_array_equal(made(source, (3, 3), {"x": array}), array[[3, 0, 0]])
    np.testing.assert_array_equal(array, np.arange(12).reshape(4, 3))


def test_stacked_keeps_the_order_and_the_dtype() -> None:
    arrays = {f"{e}.{part}": np.full((2, 3), 10 * e + i, np.float16) for e in range(3) for i, part in enumerate("ab")}
    source = stacked([[f"{e}.a", f"{e}.b"] for e in range(3)], (2, 3))
    assert source.shapes == dict.fromkeys(arrays, (2, 3))
    built = made(source, (3, 4, 3), arrays)
    assert built.dtype == np.float16
    assert built[:, :, 0].tolist() == [[0, 0, 1, 1], [10, 10, 11, 11], [20, 20, 21, 21]]


def test_a_window_is_made_of_the_tensors_inside_it() -> None:
    """A window of three experts: rows 1 to 2, and the last columns of two."""
    source = stacked([[f"{e}.a", f"{e}.b"] for e in range(3)], (2, 3))
    pieces = list(source.pieces((slice(1, 3), slice(1, 3), slice(2, None)), (3, 4, 3)))
    assert [piece.name for piece in pieces] == ["1.a", "1.b", "2.a", "2.b"]
    assert pieces[3].taken == (slice(0, 1), slice(0, 1), slice(2, 3), ...)
    assert pieces[3].place == (slice(1, 2), slice(1, 2), slice(0, 1))
    only = source.pieces((slice(None), slice(2, 4)), (3, 4, 3))
    assert [piece.name for piece in only] == ["0.b", "1.b", "2.b"]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("raw", "canonical"), [
    ("model.norm.weight", "model.norm.weight"),
    ("lm_head.weight", "lm_head.weight"),
    ("model.language_model.norm.weight", "model.norm.weight"),
    ("language_model.model.norm.weight", "model.norm.weight"),
    ("model.layers.0.model.language_model.weight", "model.layers.0.model.language_model.weight"),
    ("other.weight", "other.weight"),
])  # fmt: skip
def test_canonical_names(name: str, raw: str, canonical: str) -> None:
    assert family_of({"model_type": name}).canonical(raw) == canonical


@pytest.mark.parametrize("name", FAMILIES)
def test_skipped_names(name: str) -> None:
    family = family_of({"model_type": name})
    for skipped in ("mtp.fc.weight", "mtp.layers.0.self_attn.q_norm.weight", "model.visual.blocks.0.norm1.weight",
                    "visual.patch_embed.proj.bias", "model.mtp.norm.weight"):  # fmt: skip
        assert family.skips(skipped)
    for saved in ("model.norm.weight", "model.language_model.norm.weight", "lm_head.weight", "mtp", "mtpx.weight",
                 "model.layers.0.mtp.weight", "model.visualizer.weight"):  # fmt: skip
        assert not family.skips(saved)


@pytest.mark.parametrize(("name", "fields", "fault"), [
    ("qwen3_5", {"mtp_num_hidden_layers": 0}, "mtp_num_hidden_layers: expected one of 1"),
    ("qwen3_5_moe", {"mtp_num_hidden_layers": 2}, "mtp_num_hidden_layers: expected one of 1"),
    ("qwen3_next", {"num_nextn_predict_layers": 2}, "num_nextn_predict_layers: expected one of 1"),
    ("qwen3_5", {"mtp_use_dedicated_embeddings": True}, "mtp_use_dedicated_embeddings: expected one of False"),
    ("qwen3_5", {"mtp_layer_types": ["linear_attention"]}, "mtp_layer_types: expected one of"),
    ("qwen3_5", {"layer_types": ["linear_attention"] * 3}, "layer_types: expected a layer of full attention"),
])  # fmt: skip
def test_a_head_that_is_not_implemented_is_a_fault_where_it_is_asked_for(name: str, fields: dict, fault: str) -> None:
    config = tiny(name, 2) | fields
    assert family_of(config).read_config(config).head is None
    with pytest.raises(ConfigError, match=fault):
        with_head(config).read_config(config)


def test_tensors_of_another_head_are_not_skipped_where_one_is_asked_for() -> None:
    assert family_of(tiny("qwen3_5", 2)).skips("mtp.layers.1.self_attn.q_proj.weight")
    assert not with_head(tiny("qwen3_5", 2)).skips("mtp.layers.1.self_attn.q_proj.weight")
    assert with_head(tiny("qwen3_5", 2)).skips("model.visual.blocks.0.norm1.weight")


def test_the_layer_of_a_head_is_like_the_first_one_of_the_decoder() -> None:
    """Layers of the head are numbered from 0 again, as transformers and vLLM do it."""
    config = tiny("qwen3_next", 2)
    for dense, kind in (([0], MlpConfig), ([1], MoeConfig)):
        head = with_head(config).read_config(config | {"mlp_only_layers": dense}).head
        assert head is not None and [type(branch) for branch in head] == [AttentionConfig, kind]
