"""Location of a checkpoint: a directory, the Hugging Face Hub or its cache."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from hybridlm.checkpoint.directory import TORCH
from hybridlm.checkpoint.gguf_file import is_gguf
from hybridlm.errors import CheckpointError

# Downloaded files: never weights of other frameworks; `TORCH` only without safetensors.
FILES = [
    "config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "quantize_config.json",
    "quant_config.json",
    "model.safetensors.index.json",
    "*.safetensors",
    "tokenizer.json",
    "tiktoken.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "adapter_config.json",
    "decision.json",
    "decision_template.jinja",
    "decision_config.json",
    "judge_config.json",
    "calibration.json",
    "additional_chat_templates/*.jinja",
]
# "*" crosses folders here; folders have checkpoints of other formats ("original/", "onnx/").
IGNORED = [f"*/{name}" for name in FILES]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9_][\w.-]{0,95})?", re.ASCII)


def resolve(dir_or_hub_id: str | os.PathLike[str], revision: str | None = None, cache_dir: str | None = None) -> Path:
    """Return a checkpoint's directory or GGUF file; download a directory if necessary.

    Args:
        dir_or_hub_id: an existing path precedes a Hub id ("organisation/name").
        revision: branch, tag or commit on the Hub.
        cache_dir: None for huggingface_hub's own.

    Raises:
        CheckpointError: no such directory or Hub id, not allowed, or not cached offline (HF_HUB_OFFLINE=1).
    """
    name = os.fspath(dir_or_hub_id)
    # Path raises for "~nobody" and too long names.
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        return Path(path)
    if is_gguf(path):
        return Path(path)
    if os.path.exists(path):
        raise CheckpointError(
            name,
            "is a file",
            "Give a GGUF file, or the directory that holds config.json (of an adapter: adapter_config.json) and the "
            "safetensors files.",
        )
    looks_like_path = name.startswith((".", "/", "~")) or name.endswith("/") or "\\" in name or name.count("/") > 1
    if isinstance(dir_or_hub_id, os.PathLike) or looks_like_path:
        raise CheckpointError(
            name, f"no such directory (looked at {os.path.abspath(path)})", "Hub ids have the form organisation/name."
        )
    if not _HUB_ID.fullmatch(name) or ".." in name or "--" in name:
        raise CheckpointError(f"model {name!r}", "neither a directory nor a Hub id (organisation/name)")
    folder = _download(name, revision, cache_dir)
    if (folder / "config.json").exists() and not any(folder.glob("*.safetensors")):
        folder = _download(name, revision, cache_dir, [TORCH], [f"*/{TORCH}"])
    return folder


def resolve_folder(dir_or_hub_id: str | os.PathLike[str], folder: str) -> Path:
    """Return the directory of a checkpoint with an adapter folder, otherwise as `resolve`."""
    path = resolve(dir_or_hub_id)
    if os.path.exists(os.path.expanduser(os.fspath(dir_or_hub_id))):
        return path
    files = [f"{folder}/adapter_config.json", f"{folder}/adapter_model.safetensors"]
    return _download(os.fspath(dir_or_hub_id), None, None, files, [])


def _download(
    hub_id: str,
    revision: str | None,
    cache_dir: str | None,
    files: Sequence[str] = FILES,
    ignored: Sequence[str] = IGNORED,
) -> Path:
    # This import takes longer than loading a local directory.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        folder = snapshot_download(
            hub_id, revision=revision, cache_dir=cache_dir, allow_patterns=[*files], ignore_patterns=[*ignored]
        )
        return Path(folder)
    except OSError as error:
        place = f"neither a directory here ({Path(hub_id).absolute()}) nor"
        match error:
            case GatedRepoError():
                fault = "this repository needs permission"
                advice = f"Accept its terms on https://huggingface.co/{hub_id}, then `hf auth login`."
            case RepositoryNotFoundError():
                fault = f"{place} a repository on the Hub that you may read"
                advice = "Check the spelling; for a private repository run `hf auth login`."
            case RevisionNotFoundError():
                fault, advice = f"the repository has no revision {revision!r}", ""
            case LocalEntryNotFoundError():
                fault = f"{place} complete in the Hub's cache, and the Hub was not reached: {error}"
                advice = (
                    f"With a connection (and without HF_HUB_OFFLINE=1) run `hf download {hub_id}`, "
                    "or give a local directory."
                )
            case _:
                fault, advice = f"could not be fetched from the Hub: {error}", "Try again later."
        raise CheckpointError(hub_id, fault, advice) from error
