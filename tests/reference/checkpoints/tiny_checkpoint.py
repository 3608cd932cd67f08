"""Tiny random checkpoints written by the classes of Hugging Face transformers themselves."""

import json
import math
import pathlib
from typing import Any

import torch
import transformers
from safetensors import torch as safetensors_torch
from tiny_variants import Variant, mtp_shapes

_STEM = {
    "qwen3_next": "Qwen3Next", "qwen3_5": "Qwen3_5", "qwen3_5_moe": "Qwen3_5Moe", "lfm2": "Lfm2",
    "lfm2_moe": "Lfm2Moe", "lfm3": "Lfm3", "lara_mini": "LaraMini", "kimi_linear": "KimiLinear",
    "bailing_hybrid": "BailingHybrid", "minimax": "MiniMax", "olmo_hybrid": "OlmoHybrid", "mamba": "Mamba",
    "falcon_mamba": "FalconMamba", "jamba": "Jamba", "mamba2": "Mamba2", "nemotron_h": "NemotronH",
    "granitemoehybrid": "GraniteMoeHybrid", "bamba": "Bamba", "falcon_h1": "FalconH1", "zamba2": "Zamba2",
}  # fmt: skip
DECAYS = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
"""Tables of lightning attention, which transformers saves."""
_VISION = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": 4,
    "num_position_embeddings": 16,
}  # fmt: skip


def write_checkpoint(variant: Variant, seed: int, directory: pathlib.Path) -> None:
    """Write config.json and safetensors of `variant` into `directory`; the same seed gives the same bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    model = _new_model(variant)
    _reinitialise(model, variant, torch.Generator().manual_seed(seed + 1000))
    # Hugging Face writes the shards itself wherever nothing has to be rewritten afterwards.
    total = sum(p.numel() * p.element_size() for p in model.parameters())
    model.save_pretrained(
        directory, max_shard_size=math.ceil(total / variant.shards) + 1 if variant.shards > 1 else "1GB"
    )
    (directory / "generation_config.json").unlink(missing_ok=True)
    if variant.fused_experts or variant.mtp or variant.stored != "float32":
        _rewrite_tensors(variant, directory, torch.Generator().manual_seed(seed + 2000))
    _rewrite_config(variant, directory)


def _new_model(variant: Variant) -> Any:
    stem = _STEM[variant.family]
    text = dict(variant.text) | ({"full_attention_interval": variant.interval} if variant.interval else {})
    implementation = {"attn_implementation": "eager", "experts_implementation": "eager"}
    if not variant.multimodal:
        kind = "TextConfig" if variant.family.startswith("qwen3_5") else "Config"
        config = getattr(transformers, stem + kind)(**text)
        return getattr(transformers, stem + "ForCausalLM")._from_config(config, **implementation)
    vocab = variant.text["vocab_size"]
    config = getattr(transformers, stem + "Config")(
        text_config=text,
        vision_config=_VISION | {"out_hidden_size": variant.text["hidden_size"]},
        tie_word_embeddings=variant.tied,
        image_token_id=vocab - 1,
        video_token_id=vocab - 2,
        vision_start_token_id=vocab - 3,
        vision_end_token_id=vocab - 4,
    )
    return getattr(transformers, stem + "ForConditionalGeneration")._from_config(config, **implementation)


def _reinitialise(model: Any, variant: Variant, generator: torch.Generator) -> None:
    """Replace degenerate initial weights, so that every part of the model matters.

    Transformers starts the pad row at zero, the norms and `dt_bias` at constants and the router near zero. Its `A_log`
    goes up to log 16, a decay of about exp(-20) per token: most heads would forget everything at once and a leaked
    state would not show. Here A is log-uniform in [0.005, 4]. The time steps of Mamba2, which start near 0.01, are near
    0.7: smaller ones would leave its recurrence without a say. Tied embeddings are scaled like an untied head: at unit
    scale a tied random model only repeats its input. Buffers that are stored are correction biases of a router, and
    fixed decays, which stay.
    """
    hidden = variant.text["hidden_size"]
    normal = lambda shape, std: torch.randn(shape, generator=generator) * std
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("A_log"):
                low, high = math.log(0.005), math.log(4.0)
                value = low + (high - low) * torch.rand(weight.shape, generator=generator)
            elif name.endswith(("mixer.dt_bias", "mamba.dt_bias")):
                value = normal(weight.shape, 0.5)
            elif name.endswith(("embed_tokens.weight", "embeddings.weight")):
                value = normal(weight.shape, 1.5 / math.sqrt(hidden) if variant.tied else 1.0)
            elif name.endswith("lm_head.weight"):
                value = normal(weight.shape, 1.5 / math.sqrt(hidden))
            elif weight.ndim == 3 and weight.shape[1] == 1:
                value = normal(weight.shape, 0.6)
            elif weight.ndim == 1:
                value = weight + normal(weight.shape, 0.2)
            else:
                value = normal(
                    weight.shape, 1.2 / math.sqrt(weight[0].numel() if weight.ndim > 3 else weight.shape[-1])
                )
            weight.copy_(value)
        stored = model.state_dict()
        for name, buffer in model.named_buffers():
            if name in stored and not name.endswith(DECAYS):
                buffer.copy_(normal(buffer.shape, 0.1))


def _rewrite_tensors(variant: Variant, directory: pathlib.Path, generator: torch.Generator) -> None:
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        tensors |= safetensors_torch.load_file(file)
        file.unlink()
    (directory / "model.safetensors.index.json").unlink(missing_ok=True)
    if variant.mtp:
        for name, shape in mtp_shapes(variant).items():
            std = 0.2 if len(shape) == 1 else 1.2 / math.sqrt(shape[-1])
            tensors[name] = torch.randn(shape, generator=generator) * std
    if variant.fused_experts:
        tensors = _fuse_experts(tensors)
    if variant.stored == "bfloat16":
        # As in some releases, these stay in float32.
        kept = ("A_log", "linear_attn.norm.weight", *DECAYS)
        tensors = {name: v if name.endswith(kept) else v.to(torch.bfloat16) for name, v in tensors.items()}
    names = sorted(tensors)
    if variant.shards == 1:
        safetensors_torch.save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for shard in range(variant.shards):
        file = f"model-{shard + 1:05d}-of-{variant.shards:05d}.safetensors"
        # Every k-th name, so that the tensors of one layer are in different files.
        part = {name: tensors[name].contiguous() for name in names[shard :: variant.shards]}
        safetensors_torch.save_file(part, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    size = sum(value.numel() * value.element_size() for value in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


_PARTS = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"), ("up_proj", "down_proj"))
"""Names of the matrices of an expert, as families spell them; the last without a gate."""


def _fuse_experts(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    fused = {name: value for name, value in tensors.items() if ".experts." not in name}
    for prefix in sorted({name.split(".experts.")[0] + ".experts" for name in tensors if ".experts." in name}):

        def experts(part: str, prefix: str = prefix) -> torch.Tensor:
            count = sum(name.startswith(prefix + ".") and name.endswith(f".{part}.weight") for name in tensors)
            return torch.stack([tensors[f"{prefix}.{expert}.{part}.weight"] for expert in range(count)])

        names = next(names for names in _PARTS if f"{prefix}.0.{names[0]}.weight" in tensors)
        if len(names) == 3:
            fused[prefix + ".gate_up_proj"] = torch.cat([experts(names[0]), experts(names[1])], dim=1)
        else:
            fused[f"{prefix}.{names[0]}"] = experts(names[0])
        fused[prefix + ".down_proj"] = experts(names[-1])
    return fused


def _rewrite_config(variant: Variant, directory: pathlib.Path) -> None:
    file = directory / "config.json"
    config = json.loads(file.read_text())
    text = config["text_config"] if variant.multimodal else config
    if variant.legacy_rope:
        rope = text.pop("rope_parameters")
        text |= {
            "rope_theta": rope["rope_theta"],
            "partial_rotary_factor": rope["partial_rotary_factor"],
            "rope_scaling": None,
        }
    if variant.interval is not None:
        text.pop("layer_types")
        text["full_attention_interval"] = variant.interval
    for name, value in variant.rewritten.items():
        text.pop(name, None)
        if value is not None:
            text[name] = value
    config["dtype"] = text["dtype"] = variant.stored
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
