"""GGUF files as llama.cpp's converter writes them, from the tensors of tiny golden checkpoints."""

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from ml_dtypes import bfloat16
from safetensors.numpy import load_file

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
OF = {"qwen35": "dense_interval", "qwen35moe": "sparse_base", "lfm2": "lfm2_base"}
END = "<end>"
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
TOKENS = ["<pad>", "<begin>", END, "Ġ", *map(chr, range(ord("!"), ord("~")))]
KINDS = [3, 3, 3] + [1] * (len(TOKENS) - 3)
_LEAVES = {
    "input_layernorm": "attn_norm", "operator_norm": "attn_norm", "post_attention_layernorm": "post_attention_norm",
    "ffn_norm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.out_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
    "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta", "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp", "feed_forward.w1": "ffn_gate", "feed_forward.w2": "ffn_down",
    "feed_forward.w3": "ffn_up", "conv.conv": "shortconv.conv", "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj", "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps", "mlp.experts.down_proj": "ffn_down_exps",
}  # fmt: skip
_OUTER = {"model.embed_tokens": "token_embd", "lm_head": "output", "model.norm": "output_norm"}
_OUTER |= {"model.embedding_norm": "token_embd_norm"}
_HEAD = {
    "mtp.fc.weight": "eh_proj",
    "mtp.pre_fc_norm_embedding.weight": "enorm",
    "mtp.pre_fc_norm_hidden.weight": "hnorm",
    "mtp.norm.weight": "shared_head_norm",
}


def golden(
    architecture: str, prediction: bool = False, source: Path | None = None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return config.json and tensors for a file, one with a prediction head."""
    folder = source or GOLDEN / ("dense_multimodal" if prediction else OF[architecture])
    # In the order of their names: experts are joined in the order of their numbers.
    tensors = {name: item for file in sorted(folder.glob("*.safetensors")) for name, item in load_file(file).items()}
    tensors = dict(sorted(tensors.items()))
    tensors = {n.replace("language_model.", ""): t.astype(np.float32) for n, t in tensors.items() if "visual" not in n}
    config = json.loads((folder / "config.json").read_text())
    return config.get("text_config", config), tensors


def _tiled(array: np.ndarray, config: Mapping[str, Any], count: int = 0) -> np.ndarray:
    keys = config["linear_num_key_heads"]
    heads = array[count:].reshape(keys, config["linear_num_value_heads"] // keys, -1, *array.shape[1:])
    return np.concatenate([array[:count], heads.swapaxes(0, 1).reshape(array[count:].shape)])


def _joined(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Take the experts of a layer together."""
    experts: dict[str, list[np.ndarray]] = {}
    for name, array in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            halves = zip(("gate_proj", "up_proj"), np.split(array, 2, axis=1), strict=True)
            experts |= {f"{name.removesuffix('gate_up_proj')}{part}.weight": [*half] for part, half in halves}
            continue
        if name.endswith("experts.down_proj"):
            experts[name + ".weight"] = [*array]
            continue
        experts.setdefault(re.sub(r"experts\.\d+\.", "experts.", name), []).append(array)
    return {name: np.stack(arrays) if ".experts." in name else arrays[0] for name, arrays in experts.items()}


def converted(name: str, array: np.ndarray, config: Mapping[str, Any]) -> list[tuple[str, np.ndarray]]:
    """Return llama.cpp's form of a Hugging Face tensor."""
    last = config["num_hidden_layers"]
    if name in _HEAD:
        return [(f"blk.{last}.nextn.{_HEAD[name]}.weight", array + ("norm" in name))]
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name.replace("mtp.layers.0", f"model.layers.{last}"))
    if match is None:
        return [(_OUTER[name.removesuffix(".weight")] + ".weight", array + ("lm_head" not in name and array.ndim == 1
                 and config["model_type"] != "lfm2"))]  # fmt: skip
    prefix, leaf = f"blk.{match[1]}.", match[2]
    if leaf == "linear_attn.A_log":
        return [(prefix + "ssm_a", _tiled(-np.exp(array), config))]
    if leaf == "linear_attn.dt_bias":
        return [(prefix + "ssm_dt.bias", _tiled(array, config))]
    leaf = leaf.removesuffix(".weight")
    if leaf in ("linear_attn.in_proj_qkv", "linear_attn.conv1d"):
        array = _tiled(array, config, 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"])
    elif leaf in ("linear_attn.in_proj_z", "linear_attn.in_proj_a", "linear_attn.in_proj_b"):
        array = _tiled(array, config)
    elif leaf == "linear_attn.out_proj":
        array = _tiled(array.T, config).T
    if leaf in ("linear_attn.conv1d", "conv.conv"):
        array = array[:, 0]
    elif leaf == "mlp.shared_expert_gate":
        array = array[0]
    if array.ndim == 1 and leaf.endswith("norm") and leaf != "linear_attn.norm" and config["model_type"] != "lfm2":
        array = array + 1
    return [(f"{prefix}{_LEAVES[leaf]}.weight", array)]


def write_metadata(
    writer: gguf.GGUFWriter, architecture: str, config: Mapping[str, Any], prediction: bool = False
) -> None:
    """Write the keys of an architecture."""
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"] + prediction)
    if prediction:
        writer.add_nextn_predict_layers(1)
    writer.add_head_count(config["num_attention_heads"])
    writer.add_rope_freq_base(float(config["rope_parameters"]["rope_theta"]))
    writer.add_layer_norm_rms_eps(float(config.get("rms_norm_eps", config.get("norm_eps"))))
    if architecture == "lfm2":
        attending = [kind == "full_attention" for kind in config["layer_types"]]
        writer.add_head_count_kv([item * config["num_key_value_heads"] for item in attending])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_shortconv_l_cache(config["conv_L_cache"])
        return
    value_heads = config["linear_num_value_heads"]
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_uint32(f"{architecture}.full_attention_interval", config.get("full_attention_interval", 2))
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(value_heads)
    writer.add_ssm_inner_size(value_heads * config["linear_value_head_dim"])
    rope = config["rope_parameters"]
    writer.add_rope_dimension_count(int(rope["partial_rotary_factor"] * config["head_dim"]))
    writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    if architecture == "qwen35":
        writer.add_feed_forward_length(config["intermediate_size"])
        return
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


def write_tokenizer(
    writer: gguf.GGUFWriter, split: str, tokens: list[str], kinds: list[int], merges: list[str], begins: bool = False
) -> None:
    """Write a byte-level BPE; tokens 0, 1 and 2 are padding, beginning and end."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    if merges:
        writer.add_token_merges(merges)
    else:
        writer.add_key_value("tokenizer.ggml.merges", ["! !"], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING)
    writer.add_pad_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(begins)
    writer.add_chat_template(TEMPLATE)


def write_gguf(
    path: Path,
    architecture: str,
    kind: Type | Callable[[str], Type] = Type.F32,
    extra: Mapping[str, np.ndarray] | None = None,
    changes: Mapping[str, np.ndarray] | None = None,
    prediction: bool = False,
    source: Path | None = None,
) -> Path:
    """Write a golden checkpoint as a GGUF file; returns its path.

    Args:
        path: the file.
        architecture: a key of `OF`.
        kind: of matrices with rows of whole blocks, or a function of llama.cpp's name; others are float32. The package
            has no quantisation to K-quants: matrices of these kinds are random.
        extra: more tensors, in float32.
        changes: other arrays for tensors of llama.cpp's names.
        prediction: write the checkpoint that has a multi-token-prediction head, for "qwen35".
        source: another checkpoint than the golden one.
    """
    config, tensors = golden(architecture, prediction, source)
    writer = gguf.GGUFWriter(path, architecture)
    write_metadata(writer, architecture, config, prediction)
    # Bytes of one character each merge to nothing, so that texts of the tests have as many tokens as characters.
    write_tokenizer(writer, "lfm2" if architecture == "lfm2" else "qwen35", [*TOKENS[:-1], "!!"], KINDS, ["! !"])
    tensors = _joined(tensors)
    result = {name: item for key, array in tensors.items() for name, item in converted(key, array, config)}
    written: list[str] = []
    for name, array in (result | dict(extra or {}) | dict(changes or {})).items():
        wanted = kind if isinstance(kind, Type) else kind(name)
        fits = array.ndim > 1 and array.shape[-1] % gguf.GGML_QUANT_SIZES[wanted][0] == 0
        use = wanted if fits and "conv1d" not in name else Type.F32
        if use.name.endswith("_K"):
            data = random_blocks(use.name, math.prod(array.shape[:-1]), array.shape[-1], len(written))
            data = data.reshape(*array.shape[:-1], -1)
        else:
            data = gguf.quants.quantize(np.ascontiguousarray(array, np.float32), use)
        writer.add_tensor(name, data, raw_dtype=use)
        written.append(name)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


_SCALES = {"Q4_1": 2, "Q5_1": 2, "Q4_K": 2, "Q5_K": 2}
_AT_THE_END = {"Q2_K": 2, "Q3_K": 1, "Q6_K": 1}
"""Scales of float16 at the beginning of a block, or at its end; other kinds have one at the beginning."""


def random_blocks(kind: str, rows: int, columns: int, seed: int = 0, size: float = 2e-4) -> np.ndarray:
    """Return rows of blocks of any codes; `size` is the standard deviation of the scales."""
    block, bytes_of = gguf.GGML_QUANT_SIZES[Type[kind]]
    random = np.random.default_rng(seed)
    raw = random.integers(0, 256, (rows * columns // block, bytes_of), np.uint8)
    count = _AT_THE_END.get(kind, _SCALES.get(kind, 1))
    halves = (random.normal(size=(len(raw), count)) * size).astype(np.float16).view(np.uint8)
    if kind == "MXFP4":
        raw[:, 0] = random.integers(100, 150, len(raw))  # XLA takes denormal numbers for zero
    elif kind in _AT_THE_END:
        raw[:, -2 * count :] = halves
    else:
        raw[:, : 2 * count] = halves
    return raw.reshape(rows, -1)


def rounded(array: np.ndarray, kind: Type) -> np.ndarray:
    """Return the numbers that are left of a matrix when it is stored."""
    if kind is Type.BF16:
        return array.astype(bfloat16).astype(np.float32)
    return gguf.quants.dequantize(gguf.quants.quantize(array, kind), kind)
