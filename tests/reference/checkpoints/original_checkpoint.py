"""Mamba and Mamba2 checkpoints in mamba_ssm's form: pytorch_model.bin of torch."""

import json
import pathlib
from typing import Any

import torch
from safetensors import torch as safetensors_torch

MULTIPLE = 8
"""mamba_ssm pads vocabularies to this multiple."""


def write_original(source: pathlib.Path, target: pathlib.Path, dtype: torch.dtype | None = None) -> None:
    """Write config.json and pytorch_model.bin of mamba_ssm.

    Args:
        source: checkpoint of transformers, in one file.
        target: folder to write.
        dtype: of the tensors; None leaves them.
    """
    target.mkdir(parents=True, exist_ok=True)
    fields = json.loads((source / "config.json").read_text())
    stored = safetensors_torch.load_file(source / "model.safetensors")
    tensors = {name.replace("embeddings.", "embedding."): tensor.to(dtype) for name, tensor in stored.items()}
    # mamba_ssm has the head in every file; the numbers of a tied one are stored once.
    tensors.setdefault("lm_head.weight", tensors["backbone.embedding.weight"])
    torch.save(_Module(tensors).state_dict(), target / "pytorch_model.bin")
    (target / "config.json").write_text(json.dumps(original_fields(fields), indent=4))


def original_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Return config.json of mamba_ssm for one of transformers."""
    second = fields["model_type"] == "mamba2"
    names = {"d_state": "state_size", "d_conv": "conv_kernel", "expand": "expand", "conv_bias": "use_conv_bias"}
    names |= {"headdim": "head_dim", "ngroups": "n_groups"} if second else {"dt_rank": "time_step_rank"}
    inner = {name: fields[field] for name, field in names.items()}
    # Padded to the size of the embedding of transformers.
    multiple = MULTIPLE if fields["vocab_size"] % MULTIPLE == 0 else 1
    return {
        "d_model": fields["hidden_size"], "d_intermediate": 0, "n_layer": fields["num_hidden_layers"],
        "vocab_size": fields["vocab_size"] - (multiple - 1), "ssm_cfg": inner | ({"layer": "Mamba2"} if second else {}),
        "attn_layer_idx": [], "attn_cfg": {}, "rms_norm": True, "residual_in_fp32": True, "fused_add_norm": True,
        "pad_vocab_size_multiple": multiple, "tie_embeddings": fields["tie_word_embeddings"],
    }  # fmt: skip


class _Module(torch.nn.Module):
    """Module with a state dict of these tensors, with the metadata of real models."""

    def __init__(self, tensors: dict[str, torch.Tensor]):
        super().__init__()
        for name, tensor in tensors.items():
            *path, last = name.split(".")
            module: torch.nn.Module = self
            for part in path:
                if not hasattr(module, part):
                    module.add_module(part, torch.nn.Module())
                module = module.get_submodule(part)
            module.register_parameter(last, torch.nn.Parameter(tensor))
