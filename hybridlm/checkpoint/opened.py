"""Checkpoints in Hugging Face's layout, in a GGUF file or written by `LM.save`, behind one set of functions."""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hybridlm.checkpoint.adapters import Adapter, BoundAdapter
from hybridlm.checkpoint.directory import CheckpointDirectory, open_directory
from hybridlm.checkpoint.fingerprint import Fingerprint, checkpoint_fingerprint, fingerprint_of_version, version_of
from hybridlm.checkpoint.gguf_file import is_gguf, open_gguf
from hybridlm.checkpoint.header_check import check
from hybridlm.checkpoint.packed.layout import Packed
from hybridlm.checkpoint.packed.parameters import PackedParameters, laid_out, packed_forms
from hybridlm.checkpoint.read_settings import ReadSettings
from hybridlm.checkpoint.report import LoadedWeights, ParameterPath, Progress
from hybridlm.checkpoint.safetensors import READABLE
from hybridlm.checkpoint.saved.index import SavedDirectory, is_saved, open_saved
from hybridlm.checkpoint.saved.read import head_parameters, read_saved, saved_forms
from hybridlm.checkpoint.shards import ALL_WHOLE, Shards, shards_of
from hybridlm.checkpoint.weights import read_tensors
from hybridlm.gguf_files import BLOCK_TYPES
from models import Family, text_fields

Checkpoint = CheckpointDirectory | SavedDirectory


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a directory or a GGUF file and check everything that can be checked without reading a parameter.

    Raises:
        CheckpointError: with every fault.
    """
    if is_gguf(path):
        return open_gguf(path)
    return open_saved(Path(path)) if is_saved(Path(path)) else open_directory(path)


def stored_dtype(checkpoint: Checkpoint) -> str:
    """Return the dtype of most bytes of the checkpoint, or the one that its matrices were saved in.

    A quantised checkpoint's is the one that its configuration says, bfloat16 where it says none, as in GGUF files.
    """
    if isinstance(checkpoint, SavedDirectory):
        return checkpoint.dtype
    if checkpoint.grouped.quantised:
        said = [
            one.get(key)
            for one in (checkpoint.config, text_fields(checkpoint.config))
            for key in ("dtype", "torch_dtype")
        ]
        return next((one for one in said if one in ("bfloat16", "float16", "float32")), "bfloat16")
    sizes = Counter[str]()
    for name in checkpoint.files.keys() - checkpoint.grouped.parts.keys():
        info = checkpoint.info(name)
        sizes[info.dtype] += info.end - info.begin
    if BLOCK_TYPES & sizes.keys():
        return "bfloat16"
    return READABLE.get(sizes.most_common(1)[0][0], READABLE["BF16"]).name


def fingerprint_of(
    checkpoint: Checkpoint, dtype: str, adapters: Sequence[Adapter] = (), packed: Collection[str] = ()
) -> Fingerprint:
    """Return the fingerprint of a model after its weights have been read.

    A saved model has the fingerprint of the original. The fingerprint differs if it is loaded in another dtype or with
    other packed weights, because saving rounds numbers. Every byte of adapters counts. Packed and dequantised weights
    give different fingerprints.

    Args:
        checkpoint: the files, opened before the weights were read. Files of the last seconds are hashed here.
        dtype: of the matrices.
        adapters: merged into the weights.
        packed: names of the parameters that are packed.
    """
    settings = [f" with {adapter.digest}" for adapter in adapters]
    saved = isinstance(checkpoint, SavedDirectory)
    if set(packed) != (checkpoint.packed.keys() if saved else set()):
        settings.insert(0, f" packed {' '.join(sorted(packed))}")
    if saved and dtype != checkpoint.dtype:
        settings.insert(0, f" in {checkpoint.dtype}")

    def derived(text: str) -> str:
        for setting in settings:
            text = hashlib.sha256((text + setting).encode()).hexdigest()
        return text

    if isinstance(checkpoint, SavedDirectory):
        return Fingerprint(derived(checkpoint.fingerprint))
    version = version_of(checkpoint)
    if not version.settled:
        return Fingerprint(derived(checkpoint_fingerprint(checkpoint)))
    return Fingerprint(lambda: derived(fingerprint_of_version(version, open_checkpoint)), (version, *settings))


def has_head(checkpoint: Checkpoint, family: Family) -> bool:
    """Whether a checkpoint has a multi-token-prediction head that the family implements."""
    if isinstance(checkpoint, SavedDirectory):
        return bool(head_parameters(checkpoint, family))
    return any(re.fullmatch(pattern, name) for pattern in head_tensors(family) for name in checkpoint.names)


def head_tensors(family: Family) -> set[str]:
    """Return the patterns of tensors that are read only with the head."""
    return set() if family.with_head is None else set(family.skipped) - set(family.with_head.skipped)


def load_parameters(
    checkpoint: Checkpoint,
    family: Family,
    config: Any,
    dtype: str,
    progress: Progress | None = None,
    shards: Mapping[ParameterPath, Shards] = ALL_WHOLE,
    adapters: Sequence[BoundAdapter] = (),
    only: Collection[ParameterPath] | None = None,
    packed: PackedParameters | None = None,
) -> LoadedWeights:
    """Read every parameter of a model.

    Args:
        checkpoint: an opened one.
        family: lists the parameters and how they are built from tensors.
        config: the result of `family.read_config(checkpoint.config)`.
        dtype: "bfloat16", "float16" or "float32"; parameters marked `float32` are always float32.
        progress: called as `progress(bytes_done, bytes_total, path)` before the first parameter and after each.
        shards: layout of parameters over devices; others are whole on JAX's default device.
        adapters: are merged in float32, in order; the result is rounded once.
        only: paths of the parameters that are read; None for all.
        packed: quantised parameters that are kept packed (`packed_parameters`, with the same arguments); None: none.

    Raises:
        CheckpointError: all faults of the headers; a tile of a saved model that has changed since, or values that
            `dtype` cannot hold.
        ValueError: an unknown `dtype`.
    """
    settings = ReadSettings(dtype, progress, shards, adapters, only, packed)
    if isinstance(checkpoint, SavedDirectory):
        return read_saved(checkpoint, family, config, settings)
    return read_tensors(checkpoint, family, config, settings)


def packed_parameters(
    checkpoint: Checkpoint,
    family: Family,
    config: Any,
    dtype: str,
    products: Packed,
    adapters: Sequence[BoundAdapter] = (),
    shards: Mapping[ParameterPath, Shards] = ALL_WHOLE,
) -> PackedParameters:
    """Return the parameters that can stay packed, from headers alone, and what `load_parameters` reads them by.

    Args:
        checkpoint, family, config, adapters, shards: as for `load_parameters`.
        dtype: that numbers are rounded to in products.
        products: how products are computed.

    Raises:
        CheckpointError: all faults of the headers.
    """
    plan = None
    if isinstance(checkpoint, SavedDirectory):
        forms = saved_forms(checkpoint, family.weights(config), adapters)
    else:
        plan = check(checkpoint, family, config)
        forms = packed_forms(checkpoint, plan, adapters)
    every = {weight.path: shards_of(weight, shards) for weight in family.weights(config)}
    return laid_out(forms, every, dtype, products, plan)
