"""Quantised files that other loaders have read wrongly, each by the report that describes it.

Other traps have their tests where they belong: lost rows and lists with a corrupt suffix in test_published_layouts;
names of wrappers, numbers that are not finite and configurations in test_quantised_groups; infinities of config.json in
test_checkpoint_directory.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantised_checkpoint import LAYOUTS, Layout, Stored, write_quantised
from quantised_files import rewrite
from random_checkpoint import write_random_checkpoint

from hybridlm.checkpoint import CheckpointError, load_parameters, open_model, open_safetensors
from models import ConfigError

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def read(folder: Path, head: bool = False) -> dict[Any, np.ndarray]:
    return {
        path: np.asarray(array) for path, array in load_parameters(open_model(folder, head), "float32").arrays.items()
    }


def check_equal(folder: Path, head: bool = False) -> None:
    arrays, expected = read(folder / "quantised", head), read(folder / "plain", head)
    for path, array in expected.items():
        np.testing.assert_array_equal(arrays[path], array, err_msg=str(path))


def only(pattern: str, layout: str) -> Callable[[str], Layout | None]:
    return lambda name: LAYOUTS[layout] if pattern in name else None


@pytest.mark.parametrize("layout", ["modelopt-nvfp4", "ct-nvfp4", "ct-mxfp4"])
def test_bytes_of_four_bit_codes_are_never_weights(tmp_path: Path, layout: str) -> None:
    """imp #812: a loader ignored unknown scales and took the bytes for weights."""
    folder, names = write_quantised(
        GOLDEN / "sparse_base", tmp_path / "c", only("up_proj", layout), LAYOUTS[layout].config
    )
    assert names
    scales = [name + end for name in names for end in ("_scale", "_scale_2", "_global_scale")]
    rewrite(folder / "quantised" / "model.safetensors", lambda tensors: [tensors.pop(name, None) for name in scales])
    with pytest.raises(CheckpointError) as caught:
        read(folder / "quantised")
    assert len([fault for fault in caught.value.faults if "up_proj" in fault]) >= len(names)


@pytest.mark.parametrize("layout", ["ct-int8", "fp8-block-bf16"])
def test_codes_of_a_prediction_head_are_dequantised(tmp_path: Path, layout: str) -> None:
    """sglang-das #378: int8 codes of mtp.fc that were copied into bfloat16."""
    write_random_checkpoint("sparse_base", tmp_path / "model", head=True)
    folder, names = write_quantised(tmp_path / "model", tmp_path / "c", only("mtp.", layout), LAYOUTS[layout].config)
    assert any(name.endswith("mtp.fc.weight") for name in names)
    check_equal(folder, head=True)


def test_plain_numbers_in_a_quantised_slot(tmp_path: Path) -> None:
    """ATOM #755: plain numbers instead of scales, and scales without a writer."""
    layout = LAYOUTS["modelopt-fp8"]
    folder, names = write_quantised(
        GOLDEN / "dense_interval", tmp_path / "c", only("proj", "modelopt-fp8"), layout.config
    )
    plain = open_safetensors(folder / "plain" / "model.safetensors").read(names[0])

    def without(tensors: dict[str, Stored], scale: bool) -> None:
        tensors[names[0]] = ("F32", np.array(plain))
        if not scale:
            tensors.pop(names[0] + "_scale", None)

    rewrite(folder / "quantised" / "model.safetensors", lambda tensors: without(tensors, scale=False))
    check_equal(folder)
    rewrite(
        folder / "quantised" / "model.safetensors",
        lambda tensors: (
            without(tensors, scale=True) or tensors.update({names[0] + "_scale": ("F32", np.ones((), np.float32))})
        ),
    )
    with pytest.raises(CheckpointError, match="leftover"):
        read(folder / "quantised")


MLA = "layers.0.self_attn.q_proj layers.0.self_attn.kv_a_proj_with_mqa layers.1.self_attn.kv_b_proj".split()
SPLIT = [f"model.layers.1.linear_attn.{part}" for part in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")]


@pytest.mark.parametrize(("golden", "pattern", "layout", "lists"), [
    # Engines fuse matrices into one product; the config lists each unquantised part by its name.
    ("kimi_base", "experts", "ct-int4", {"ignore": ["re:.*self_attn.*", *MLA]}),
    # The list has the names of parts, the files have the fused projection: plain, and quantised.
    ("next_dense_layers", "mlp", "ct-fp8-block", {"ignore": SPLIT}),
    ("next_dense_layers", "in_proj_qkvz", "ct-fp8-block", {"ignore": SPLIT}),
    # Targets are fused modules, the files have the parts.
    ("sparse_base", "mlp.experts", "ct-nvfp4", {"targets": ["re:.*gate_up_proj$", "re:.*experts.down_proj$"]}),
    ("sparse_base", "self_attn", "ct-fp8-rows", {"targets": ["model.layers.1.self_attn.qkv_proj"]}),
])  # fmt: skip
def test_fused_names_of_lists_change_no_scheme(
    tmp_path: Path, golden: str, pattern: str, layout: str, lists: dict[str, list[str]]
) -> None:
    """vLLM #51249, #40252: lists were compared with names of fused modules, and weights mistaken."""
    config = LAYOUTS[layout].config
    groups = {
        name: group | {"targets": lists.get("targets", ["Linear"])} for name, group in config["config_groups"].items()
    }
    settings = config | {"config_groups": groups, "ignore": lists.get("ignore", [])}
    folder, names = write_quantised(GOLDEN / golden, tmp_path / "c", only(pattern, layout), settings)
    assert names
    check_equal(folder)


def test_a_list_of_fused_modules_is_no_list_of_their_parts(tmp_path: Path) -> None:
    """vLLM #51249 with modelopt's list: the error names both sides, and nothing is guessed."""
    config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    layers = {"model.layers.1.self_attn.qkv_proj": {"quant_algo": "FP8"}}
    folder, names = write_quantised(
        GOLDEN / "sparse_base",
        tmp_path / "c",
        only("self_attn.q_proj", "modelopt-fp8"),
        config | {"quantized_layers": layers},
    )
    with pytest.raises(CheckpointError) as caught:
        read(folder / "quantised")
    (fault,) = caught.value.faults
    assert names[0] in fault and "does not list it" in fault


OLDER = {"linear_attention": "mamba", "full_attention": "attention"}


@pytest.mark.parametrize(("golden", "field"), [
    ("sparse_base", "layer_types"), ("next_dense_layers", "layer_types"), ("kimi_base", "layer_types"),
    ("olmo_base", "layer_types"), ("lfm2_base", "layer_types"), ("granite_experts", "layer_types"),
    ("granite_experts", "layers_block_type"), ("nemotron_latent", "layers_block_type"),
])  # fmt: skip
def test_kinds_of_layers_have_two_spellings(tmp_path: Path, golden: str, field: str) -> None:
    """transformers 5 renamed them; both spellings give the same model."""
    folder, names = write_quantised(GOLDEN / golden, tmp_path / "c", LAYOUTS["ct-fp8-rows"])
    path = folder / "quantised" / "config.json"
    fields = json.loads(path.read_text())
    newer = fields.pop("layer_types", None) or fields.pop("layers_block_type")
    older = [OLDER.get(kind, kind) for kind in newer]
    assert names and older != newer
    path.write_text(json.dumps(fields | {field: older}))
    assert open_model(folder / "quantised")[2] == open_model(folder / "plain")[2]
    check_equal(folder)


@pytest.mark.parametrize(
    "kind", ["indexed_attention", "deepseek_sparse_attention", "qwen_sparse_attention", "sliding_attention"]
)
@pytest.mark.parametrize("golden", ["sparse_base", "kimi_base", "lfm2_base", "granite_experts", "nemotron_latent"])
def test_layers_that_attend_to_some_tokens_are_refused_by_name(tmp_path: Path, golden: str, kind: str) -> None:
    """The weights equal full attention's but would give another model."""
    folder, _ = write_quantised(GOLDEN / golden, tmp_path / "c", LAYOUTS["ct-fp8-rows"])
    path = folder / "quantised" / "config.json"
    fields = json.loads(path.read_text())
    field = next(name for name in ("layer_types", "layers_block_type") if name in fields)
    kinds = [kind if of_layer == "full_attention" else of_layer for of_layer in fields[field]]
    path.write_text(json.dumps(fields | {field: kinds}))
    with pytest.raises(ConfigError) as caught:
        open_model(folder / "quantised")
    assert any(fault.startswith(field) and kind in fault for fault in caught.value.faults), caught.value.faults
