"""Quantisation of a checkpoint, shard by shard, into files of compressed-tensors.

As in published recipes, embedding, head, norms, convolutions, routers, gates, and small or low-rank projections stay
plain; with 4 bits also mixers' projections: rounding them costs hybrid models most.
"""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hybridlm.checkpoint.adapters import own_adapter
from hybridlm.checkpoint.adapters.adapter import MERGE_ELSEWHERE
from hybridlm.checkpoint.directory import INDEX, MAX_CONFIG_BYTES, SINGLE, CheckpointDirectory
from hybridlm.checkpoint.gguf_file import is_gguf
from hybridlm.checkpoint.header_check import ChosenSource, check
from hybridlm.checkpoint.model import open_model
from hybridlm.checkpoint.safetensors import READABLE, STORED, TensorFile, write_safetensors
from hybridlm.checkpoint.saved.write import copy_small_files, new_directory
from hybridlm.checkpoint.shards import ParameterPath
from hybridlm.checkpoint.weights import Progress
from hybridlm.errors import CheckpointError
from hybridlm.files.atomic import new_path
from hybridlm.files.strict_json import read_object
from hybridlm.quantised.packed import PackedForm
from hybridlm.quantised.rounding import RoundingScheme, rounding_scheme
from models import Weight, WeightSource
from models.weights.sources import ArraySlice

FEED_FORWARD = frozenset({"gate_proj", "up_proj", "down_proj", "gate_up_proj"})
MIXERS = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "in_proj", "in_proj_qkv", "in_proj_z", "out_proj"})
HEAD = frozenset({"embed_tokens", "lm_head"})
"""Matrices of the vocabulary: one tensor in tied models."""
# Engines multiply these two at once, with one matrix scale.
_TOGETHER = frozenset({"gate_proj", "up_proj", "w1", "w3"})


class Quantised(NamedTuple):
    """A matrix to be quantised.

    Attributes:
        window: None for a whole tensor.
    """

    name: str
    window: ArraySlice | None
    shape: tuple[int, ...]
    rounding: RoundingScheme

    @property
    def shares(self) -> str:
        module = self.name.removesuffix(".weight")
        parent, _, last = module.rpartition(".")
        return parent if last in _TOGETHER else module


@dataclass(frozen=True)
class Recipe:
    """Choice of matrices to be quantised, and their rounding.

    Attributes:
        head: None keeps vocabulary matrices plain.
    """

    rounding: RoundingScheme
    mixers: bool = False
    head: RoundingScheme | None = None

    @classmethod
    def of(cls, scheme: str, *, group_size: int | None = None, mixers: bool = False, head: bool = False) -> "Recipe":
        """Return the recipe of settings of `quantise_checkpoint`; raises ValueError."""
        rounding = rounding_scheme(scheme, group_size)
        vocabulary = rounding if rounding.bits == 8 else rounding_scheme("int8")
        return cls(rounding, mixers, vocabulary if head else None)

    def rounding_of(self, weight: Weight, source: WeightSource, shape: tuple[int, ...]) -> RoundingScheme | None:
        """Return the rounding of a tensor; None for a plain tensor."""
        last = weight.path[-1]
        if weight.float32 or not source.keeps_rows or len(shape) not in (2, 3):
            return None
        if last in HEAD:
            return self.head
        is_mixer = last in MIXERS and (self.mixers or self.rounding.bits == 8)
        return self.rounding if last in FEED_FORWARD or is_mixer else None


@dataclass(frozen=True)
class QuantiseReport:
    """Result of `quantise_checkpoint`; groups do not divide `ragged` tensors."""

    quantised: int
    ragged: tuple[str, ...]
    bytes_before: int
    bytes_after: int


def quantise_checkpoint(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    scheme: str,
    group_size: int | None = None,
    mixers: bool = False,
    head: bool = False,
    progress: Progress | None = None,
) -> QuantiseReport:
    """Write a quantised copy of a checkpoint; its name appears when it is complete.

    About one tensor is in memory.

    Args:
        source: a plain checkpoint in Hugging Face's layout.
        scheme: "fp8-block", "int8", "int4" or "nvfp4".
        group_size: columns with one scale, for "int4" (128 by default) and "int8" (a whole row).
        mixers: quantise projections of attention, linear attention and Mamba with 4 bits, too.
        head: quantise head and embedding with 8 bits, as "int8" for schemes of 4.
        progress: (bytes done, all bytes, tensor).

    Raises:
        CheckpointError: faults of the checkpoint, or numbers that are not finite.
        OSError: nothing is left behind.
    """
    recipe, target = Recipe.of(scheme, group_size=group_size, mixers=mixers, head=head), new_path(Path(target))
    checkpoint, family, config = open_model(Path(source))
    if not isinstance(checkpoint, CheckpointDirectory) or is_gguf(checkpoint.path):
        raise ValueError(f"{source}: expected a checkpoint in Hugging Face's layout")
    if checkpoint.grouped.quantised or checkpoint.settings.method:
        raise ValueError(f"{source}: is quantised already; take the plain release of the model")
    if (adapter := own_adapter(checkpoint.path)) is not None:
        raise CheckpointError(adapter, "is a LoRA adapter of the model, expected a model without one", MERGE_ELSEWHERE)
    plan, ragged = _plan(checkpoint, check(checkpoint, family, config).choices, recipe)
    if not plan:
        why = (
            f"groups do not divide the rows of {len(ragged)} ragged tensors"
            if ragged
            else f"all of its matrices are of mixers, which {recipe.rounding.bits} bits leave plain without mixers=True"
        )
        raise ValueError(f"{source}: nothing to quantise as {scheme}: {why}")
    writer = _QuantisedWriter(checkpoint, plan, progress)
    with new_directory(target) as directory:
        copy_small_files(checkpoint.path, directory)
        fields = read_object(checkpoint.path / "config.json", MAX_CONFIG_BYTES)
        matrices = [name for name in checkpoint.files if name not in plan and len(checkpoint.shape(name)) in (2, 3)]
        plain = [name.removesuffix(".weight") for name in matrices if ".conv" not in name and "embed" not in name]
        fields["quantization_config"] = recipe.rounding.settings(sorted(plain), recipe.head)
        (directory / "config.json").write_text(json.dumps(fields, indent=2))
        writer.write(directory)
    return QuantiseReport(sum(map(len, plan.values())), tuple(ragged), writer.total, writer.written)


def forms_of_copy(weights: Iterable[Weight], recipe: Recipe) -> dict[ParameterPath, PackedForm]:
    forms = dict[ParameterPath, PackedForm]()
    for weight in weights:
        source = weight.options[0]
        roundings = {recipe.rounding_of(weight, source, shape) for shape in source.shapes.values()}
        (rounding,) = roundings if len(roundings) == 1 else (None,)
        if rounding is None or not all(map(rounding.fits, source.shapes.values())):
            continue
        form = rounding.packed_form(weight.shape)
        if form is not None:
            forms[weight.path] = form
    return forms


def _plan(
    checkpoint: CheckpointDirectory, choices: tuple[ChosenSource, ...], recipe: Recipe
) -> tuple[dict[str, list[Quantised]], list[str]]:
    plan: dict[str, list[Quantised]] = {}
    refused: set[str] = set()
    for choice in choices:
        for canonical, raw in choice.names.items():
            shape = choice.source.shapes[canonical]
            rounding = recipe.rounding_of(choice.weight, choice.source, shape)
            if rounding is None:
                refused.add(raw)
            elif raw.endswith(".weight"):
                plan[raw] = [Quantised(raw, None, shape, rounding)]
            else:
                plan[raw] = list(_experts(choice, canonical, raw, rounding))
    plan = {raw: parts for raw, parts in plan.items() if raw not in refused}
    ragged = [raw for raw, parts in plan.items() if not all(part.rounding.fits(part.shape) for part in parts)]
    return {raw: parts for raw, parts in plan.items() if raw not in ragged}, ragged


def _experts(choice: ChosenSource, canonical: str, raw: str, rounding: RoundingScheme) -> Iterator[Quantised]:
    separate = next(source for source in choice.weight.options if source is not choice.source)
    stem, _, last = canonical.rpartition("experts.")
    prefix, stem = raw.removesuffix(last), stem + "experts."
    for name, shape in separate.shapes.items():
        window = None if separate.places is None else separate.places[name]
        yield Quantised(prefix + name.removeprefix(stem), window, shape, rounding)


class _QuantisedWriter:
    def __init__(
        self, checkpoint: CheckpointDirectory, plan: Mapping[str, list[Quantised]], progress: Progress | None
    ) -> None:
        self.checkpoint, self.plan, self.progress = checkpoint, plan, progress
        self.total = sum(checkpoint.info(name).end - checkpoint.info(name).begin for name in checkpoint.files)
        self.bytes_read = self.written = 0
        # Matrices may share a scale, so all are read first.
        self.largest: dict[str, float] = {}
        for raw, parts in plan.items():
            if any(part.rounding.name == "nvfp4" for part in parts):
                tensor = checkpoint.read(raw)
                for part in parts:
                    magnitude = float(np.abs(self.matrix(tensor, part)).max())
                    self.largest[part.shares] = max(magnitude, self.largest.get(part.shares, 0.0))
                checkpoint.release(raw)

    def matrix(self, tensor: np.ndarray, part: Quantised) -> np.ndarray:
        matrix = (tensor if part.window is None else tensor[part.window]).reshape(part.shape).astype(np.float32)
        if not np.isfinite(matrix).all():
            raise CheckpointError(self.checkpoint.path, f"{part.name}: holds numbers that are not finite")
        return matrix

    def write(self, directory: Path) -> None:
        files: dict[Path, tuple[TensorFile, list[str]]] = {}
        for name, file in self.checkpoint.files.items():
            files.setdefault(file.path, (file, []))[1].append(name)
        index: dict[str, str] = {}
        for path, (_, names) in sorted(files.items()):
            types = dict(entry for name in names for entry in self.types(name))
            self.written += sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in types.values())
            index |= dict.fromkeys(types, path.name)
            with (directory / path.name).open("wb") as out:
                write_safetensors(out, types, self.arrays(names), {"format": "pt"})
        if set(index.values()) != {SINGLE}:
            content: dict[str, Any] = {"metadata": {"total_size": self.written}, "weight_map": index}
            (directory / INDEX).write_text(json.dumps(content, indent=2))

    def types(self, name: str) -> Iterator[tuple[str, tuple[tuple[int, ...], str]]]:
        if name not in self.plan:
            info = self.checkpoint.info(name)
            if info.dtype not in READABLE and info.dtype not in ("I32", "I64", "I8", "U8"):
                raise CheckpointError(self.checkpoint.path, f"{name}: {info.dtype} cannot be copied")
            yield name, (info.shape, STORED[info.dtype].name)
            return
        for part in self.plan[name]:
            stem = part.name.removesuffix("weight")
            yield from ((stem + last, type) for last, type in part.rounding.stored(part.shape).items())

    def arrays(self, names: list[str]) -> Iterator[np.ndarray]:
        for name in names:
            if self.progress is not None:
                self.progress(self.bytes_read, self.total, name)
            tensor = self.checkpoint.read_part(name)
            if name not in self.plan:
                yield tensor
            for part in self.plan.get(name, ()):
                yield from part.rounding.quantise(self.matrix(tensor, part), self.largest.get(part.shares)).values()
            del tensor
            self.checkpoint.release(name)
            self.bytes_read += self.checkpoint.info(name).end - self.checkpoint.info(name).begin
            if self.progress is not None:
                self.progress(self.bytes_read, self.total, name)
