"""Tiny checkpoints in published layouts: quantised tensors, their names and lists."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from command_line import run_command
from packed_weights import packed_names
from quantised_checkpoint import LAYOUTS, Layout, Stored, config_group, modelopt, write_quantised
from quantised_files import rewrite

import hybridlm
from hybridlm.checkpoint import LoadedWeights, load_parameters, open_model
from hybridlm.quantised.health import clipped_groups, lost_rows, zero_rows

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
NVFP4, FP8 = LAYOUTS["modelopt-nvfp4"], LAYOUTS["modelopt-fp8"]
FP8_BLOCKS = LAYOUTS["fp8-block-bf16"]


class Published(NamedTuple):
    """Golden model, patterns of weight names with layouts (first match wins), and configuration."""

    golden: str
    rules: Mapping[str, Layout | None]
    config: dict[str, Any]
    extra_config: dict[str, Any] | None = None


def mixed(rules: Mapping[str, str]) -> dict[str, Any]:
    """Return a configuration with module lists; patterns take the file's names."""
    return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": dict(rules)}


MARK = ".\0backbone.pt_name_sentinel"
"""Suffix that modelopt 0.47 leaves in lists of Nemotron (tests/golden_quantised/nvidia-recipes has them)."""
QWEN_FP8 = {
    r"linear_attn\.(in_proj_qkv|in_proj_z|out_proj)": FP8_BLOCKS,
    r"self_attn\.[qkvo]_proj": FP8_BLOCKS,
    r"mlp\.(experts\.\d+\.|shared_expert\.)?(gate|up|down)_proj": FP8_BLOCKS,
}  # fmt: skip
PUBLISHED = {
    "qwen-fp8": Published(
        "sparse_base",
        QWEN_FP8,
        FP8_BLOCKS.config
        | {"activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head", "model.embed_tokens"]},
    ),
    "qwen-next-fp8": Published("next_dense_layers", {r"in_proj_qkvz": FP8_BLOCKS, **QWEN_FP8},
        FP8_BLOCKS.config | {"modules_to_not_convert": ["model.layers.0.linear_attn.in_proj_ba"]}),
    "nemotron-nano-nvfp4": Published(
        "nemotron_latent",
        {r"experts|in_proj|out_proj": NVFP4},
        modelopt("NVFP4"),
        {
            "producer": {"name": "modelopt"},
            "quantization": {
                "quant_algo": "NVFP4",
                "kv_cache_quant_algo": "FP8",
                "exclude_modules": ["lm_head", "backbone.layers.*.mixer.conv1d*", "backbone.layers.2.mixer*"],
            },
        },
    ),
    "nemotron-super-nvfp4": Published("nemotron_latent",
        {r"\.experts\.": NVFP4, r"shared_experts|in_proj|out_proj": FP8},
        mixed({r"\.experts\.": "NVFP4", r"shared_experts|in_proj|out_proj": "FP8"})),
    "nemotron-lightning-nvfp4": Published("nemotron_latent",
        {r"experts\.|shared_experts|lm_head": NVFP4, r"in_proj|out_proj": FP8},
        mixed({r"experts\.|shared_experts|lm_head": "W4A16_NVFP4", r"in_proj|out_proj": "FP8"})),
    "nemotron-4b-w4a16": Published("nemotron_latent",
        {r"in_proj|out_proj|[qkvo]_proj|embeddings": NVFP4, r"lm_head": FP8},
        mixed({r"in_proj|out_proj|[qkvo]_proj|embeddings": "W4A16_NVFP4", r"lm_head": "FP8"})),
    # Every entry has the mark of modelopt after it, so that engines find nothing that the list excludes.
    "nemotron-ultra-nvfp4": Published("nemotron_latent", {r"\.experts\.": NVFP4},
        modelopt("NVFP4") | {"ignore": [item + MARK for item in ("lm_head", "backbone.layers.2.mixer.q_proj")]}),
    "qwen-nvfp4": Published("sparse_base",
        {r"experts|shared_expert\.|lm_head": NVFP4, r"self_attn|in_proj_qkv|in_proj_z|out_proj": FP8},
        mixed({r"experts|shared_expert\.|lm_head": "NVFP4", r"self_attn|in_proj_qkv|in_proj_z|out_proj": "FP8"})),
    "qwen-ct-nvfp4": Published(
        "sparse_base",
        {r"experts": LAYOUTS["ct-nvfp4"]},
        LAYOUTS["ct-nvfp4"].config
        | {"ignore": ["lm_head", "re:.*linear_attn.*", "re:.*self_attn.*", "re:.*mlp.gate$"]},
    ),
    "qwen-ct-nvfp4-with-gates": Published("dense_interval",
        {r"in_proj_[ab]": LAYOUTS["ct-nvfp4"], r"in_proj_|out_proj|mlp\.(gate|up|down)_proj": LAYOUTS["ct-nvfp4"]},
        LAYOUTS["ct-nvfp4"].config),
    "glm-nvfp4": Published("kimi_base", {r"experts\.\d+\.": NVFP4, r"layers\.0\.block_sparse_moe": NVFP4},
        modelopt("NVFP4") | {"ignore": ["lm_head", "model.layers.*.self_attn*", "model.layers.*shared_experts*"]}),
    "granite-ct-fp8": Published("granite_experts", {r"in_proj|out_proj|[qkvo]_proj|_linear": LAYOUTS["ct-fp8-rows"]},
        config_group(num_bits=8, type="float", strategy="channel")),
    "kimi-ct-int4": Published("kimi_base", {r"experts": LAYOUTS["ct-int4"]}, LAYOUTS["ct-int4"].config),
    "lfm-awq": Published("lfm2_base", {r"feed_forward|self_attn|conv\.": LAYOUTS["awq"]}, LAYOUTS["awq"].config),
}  # fmt: skip


def write(published: Published, target: Path) -> tuple[Path, list[str]]:
    def layout(name: str) -> Layout | None:
        rule = next((item for pattern, item in published.rules.items() if re.search(pattern, name)), None)
        return None if name.endswith("norm.weight") else rule

    folder, names = write_quantised(GOLDEN / published.golden, target, layout, published.config)
    path = folder / "quantised" / "config.json"
    fields = json.loads(path.read_text())
    rules = published.config.get("quantized_layers")
    if rules is not None:
        modules = {
            name.removesuffix(".weight"): {"quant_algo": next(a for p, a in rules.items() if re.search(p, name))}
            for name in names
        }
        fields["quantization_config"]["quantized_layers"] = modules
    path.write_text(json.dumps(fields))
    if published.extra_config is not None:
        (folder / "quantised" / "hf_quant_config.json").write_text(json.dumps(published.extra_config))
    return folder, names


def weights(folder: Path, dtype: str = "float32") -> LoadedWeights:
    return load_parameters(open_model(folder), dtype)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_layout_loads_with_the_numbers_of_its_dequantised_form(tmp_path: Path, name: str) -> None:
    folder, names = write(PUBLISHED[name], tmp_path / "c")
    for pattern in PUBLISHED[name].rules:
        assert any(re.search(pattern, name) for name in names), f"nothing is quantised by {pattern}"
    for dtype in ("float32", "bfloat16"):
        mapping, expected = (weights(folder / kind, dtype).arrays for kind in ("quantised", "plain"))
        for path, array in mapping.items():
            np.testing.assert_array_equal(np.asarray(array), np.asarray(expected[path]), err_msg=str(path))


def test_the_report_lists_quantised_tensors(tmp_path: Path) -> None:
    folder, _ = write(PUBLISHED["nemotron-super-nvfp4"], tmp_path / "c")
    report = weights(folder / "quantised", "bfloat16")
    assert set(report.converted) == {"nvfp4", "fp8-tensor"} and min(report.converted.values()) > 0


@pytest.mark.long
@pytest.mark.parametrize("name", ["lfm-awq", "kimi-ct-int4", "nemotron-super-nvfp4", "qwen-ct-nvfp4"])
def test_packed_and_dequantised_weights_give_the_same_texts(tmp_path: Path, name: str) -> None:
    folder, _ = write(PUBLISHED[name], tmp_path / "c")
    prompts, texts, logprobs, sizes = [[3, 5, 7], [11, 2]], [], [], []
    for dequantise in (None, "bfloat16"):
        lm = hybridlm.load(folder / "quantised", lanes=2, context=32, dequantise=dequantise, progress=False)
        packed = packed_names(lm.params)
        assert bool(packed) == (dequantise is None)
        texts.append([lm.generate([prompt], max_tokens=6)[0].token_ids for prompt in prompts])
        texts.append([item.token_ids for item in lm.generate(prompts, max_tokens=6)])
        logprobs.append([score.logprobs[1:] for score in lm.score([[3, 5, 7, 9, 1], [4, 4, 2]])])
        sizes.append(sum(array.nbytes for array in lm.params.values()))
        assert lm.engine.parameters_on_a_device[1] == sizes[-1]
        assert lm.certificates and not any(certificate.faults for certificate in lm.certificates.values())
        if packed:
            lm.save(tmp_path / "saved")
            saved = hybridlm.load(tmp_path / "saved", lanes=2, context=32, progress=False)
            for completion, other in zip(jax.tree.leaves(lm.params), jax.tree.leaves(saved.params), strict=True):
                np.testing.assert_array_equal(np.asarray(completion), np.asarray(other))
    assert texts[0] == texts[1] == texts[2] == texts[3]
    for completion, other in zip(*logprobs, strict=True):
        np.testing.assert_allclose(completion, other, atol=2e-3)
    assert sizes[0] < sizes[1]


def test_lost_rows_are_a_warning_and_inspect_names_them(tmp_path: Path) -> None:
    folder, _ = write(PUBLISHED["qwen-nvfp4"], tmp_path / "c")
    assert not weights(folder / "quantised").notes
    name = "model.layers.0.linear_attn.in_proj_qkv.weight"

    def change(tensors: dict[str, Stored]) -> None:
        tensors[name][1][32:64] = 0
        tensors["model.norm.weight"][1].reshape(-1)[3:5] = np.nan, np.inf

    rewrite(folder / "quantised" / "model.safetensors", change)
    (note,) = weights(folder / "quantised").notes
    assert note.startswith(f"{name}: 32 of its rows")
    command = ("inspect", "--weights", "-m", folder / "quantised")
    result = run_command(*command)
    rows = {line.split()[1]: line.split() for line in result.output.splitlines() if line.startswith("│")}
    # name, scheme, shape, MB, bits, rows of zeros
    assert "fp8-tensor" in rows[name] and "32" in rows[name]
    assert "nvfp4" in rows["model.layers.1.mlp.experts.3.up_proj.weight"]
    assert "BF16" in rows["model.layers.0.linear_attn.conv1d.weight"]
    assert "2" in rows["model.norm.weight"] and "2 weights are NaN or infinite" in result.stderr
    for options in (["--html", str(folder / "page.html")], ["--step", "score"], ["--target", "nvidia-h100"]):
        assert options[0] in run_command(*command, *options, code=1).output, "an option without effect"


def test_health_counts() -> None:
    weight = np.random.default_rng(0).normal(size=(2, 40, 64)).astype(np.float32)
    weight[1, 5] = 0
    weight[0, 3, 16:32] = np.where(np.arange(16) % 2, 7.0, -7.0)
    assert (zero_rows(weight), clipped_groups(weight, 16), lost_rows(weight)) == (1, 1, 0)
    weight[0, 8:16] = 0
    assert lost_rows(weight) == 9
    assert zero_rows(np.zeros((4, 8), np.float32)) == 4 and clipped_groups(np.zeros((4, 8), np.float32)) == 0
