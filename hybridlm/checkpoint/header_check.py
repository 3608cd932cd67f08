"""Check of the headers of a checkpoint against the tensors of a family."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridlm.checkpoint.directory import CheckpointDirectory
from hybridlm.checkpoint.safetensors import READABLE, STORED, unreadable
from hybridlm.errors import CheckpointError
from hybridlm.gguf_files import BLOCK_TYPES
from hybridlm.quantised import SCHEMES, contradictions
from hybridlm.quantised.settings import REFUSED
from models import Family, Weight, WeightSource
from models.weights.sources import ArraySlice, TensorSlice


@dataclass(frozen=True)
class ChosenSource:
    """A parameter's source; `names` maps canonical to stored names."""

    weight: Weight
    source: WeightSource
    names: Mapping[str, str]

    def pieces(self, checkpoint: CheckpointDirectory, window: ArraySlice) -> list[TensorSlice]:
        def place(piece: TensorSlice) -> tuple[str, int]:
            name = self.names[piece.name]
            quantised = checkpoint.grouped.quantised.get(name)
            first = name if quantised is None else quantised.parts["codes"]
            return str(checkpoint.files[first].path), checkpoint.info(first).begin

        return sorted(self.source.pieces(window, self.weight.shape), key=place)


@dataclass(frozen=True)
class ReadPlan:
    """The tensors to be read.

    Attributes:
        skipped: number of unread tensors by pattern.
    """

    choices: tuple[ChosenSource, ...]
    skipped: Mapping[str, int]
    notes: tuple[str, ...] = ()


def check(checkpoint: CheckpointDirectory, family: Family, config: Any) -> ReadPlan:
    """Choose a source for each parameter, from headers and a redundant head if present.

    The first complete option with fitting shapes is used; tensors of others are unexpected.

    Raises:
        CheckpointError: every missing (in the most complete option), unexpected, mis-shaped, ambiguous or unreadable
            tensor, and constants with other numbers.
    """
    weights = family.weights(config)
    wanted = {name for weight in weights for source in weight.options for name in source.shapes}
    faults = list(checkpoint.settings.faults)
    if checkpoint.settings.method in REFUSED:
        raise CheckpointError(checkpoint.path, faults)
    canonical = _names(checkpoint, family, wanted)
    skipped: Counter[str] = Counter()
    present: dict[str, str] = {}
    constants = family.constants(config)
    for raw in checkpoint.names:
        name = canonical(raw)
        if name in constants:
            faults.extend(_other_numbers(checkpoint, raw, constants[name]))
            continue
        pattern = next((p for p in family.skipped if re.fullmatch(p, raw) or re.fullmatch(p, name)), None)
        if pattern is not None and name not in wanted:
            skipped[pattern] += 1
        elif name in present:
            faults.append(f"ambiguous {name}: found both {present[name]} and {raw}")
        else:
            present[name] = raw
    choices = tuple(_choose(checkpoint, weight, present) for weight in weights)
    read = {name: shape for choice in choices for name, shape in choice.source.shapes.items()}
    several = {name: choice.weight for choice in choices if len(choice.weight.options) > 1 for name in choice.names}
    for name, shape in read.items():
        if name in present:
            faults.extend(_misfit(checkpoint, name, present[name], shape))
        else:
            faults.append(_missing(checkpoint, family, name, shape, several.get(name), present))
    embedding = next((choice for choice in choices if choice.weight.path == ("embed_tokens",)), None)
    notes: list[str] = []
    for name, raw in present.items():
        if name == HEAD and name not in wanted and embedding is not None:
            stored = next(iter(embedding.names.values()))
            if stored in present.values():
                fault = _redundant_head(checkpoint, raw, stored)
                (notes if fault is None else faults).append(fault or f"{raw} is not used: it equals {stored}")
            continue
        if name not in read and raw in checkpoint.grouped.faults:
            faults.append(f"unreadable {raw}: {checkpoint.grouped.faults[raw]}")
        elif name not in read:
            other = " beside another layout of the same parameter" if name in wanted else ""
            faults.append(
                f"unexpected {raw}: found {checkpoint.stored_as(raw)} {checkpoint.shape(raw)}{other}, family "
                f"{family.name} reads no such tensor"
            )
    used = [present[name] for name in read if name in present]
    quantised = {raw: checkpoint.grouped.quantised[raw] for raw in used if raw in checkpoint.grouped.quantised}
    faults.extend(contradictions(checkpoint.settings, quantised, (raw for raw in used if raw not in quantised)))
    if faults:
        raise CheckpointError(
            checkpoint.path, faults, f"(The configuration in config.json was read as family {family.name}.)"
        )
    return ReadPlan(choices, dict(skipped), tuple(notes))


def _other_numbers(checkpoint: CheckpointDirectory, name: str, expected: np.ndarray) -> list[str]:
    """Return a fault if a tensor has other integers than follow from config.json."""
    if checkpoint.stored_as(name) not in STORED:
        return [f"unreadable {name}: found {checkpoint.stored_as(name)}, expected integers"]
    stored = checkpoint.read_part(name)
    if np.array_equal(stored, expected):
        return []
    return [f"other numbers in {name}: config.json gives {expected.tolist()}, found {stored.tolist()!s:.200}"]


HEAD = "lm_head.weight"
READ = READABLE.keys() | set(SCHEMES) | BLOCK_TYPES
_ROWS = 4096


def _redundant_head(checkpoint: CheckpointDirectory, head: str, embedding: str) -> str | None:
    """Return the difference between a tied model's stored head and embedding, or None."""
    shapes = [checkpoint.shape(name) for name in (head, embedding)]
    kinds = [checkpoint.stored_as(name) for name in (head, embedding)]
    advice = (
        "config.json makes the head the embedding (tie_word_embeddings); "
        '"tie_word_embeddings": false in config.json uses the head of the file'
    )
    if shapes[0] != shapes[1] or any(kind not in READ for kind in kinds):
        return f"unexpected {head}: found {kinds[0]} {shapes[0]} beside {embedding}, {kinds[1]} {shapes[1]}; {advice}"
    tables = checkpoint.read(head), checkpoint.read(embedding)
    for start in range(0, shapes[0][0], _ROWS):
        a, b = (table[start : start + _ROWS].astype(np.float32) for table in tables)
        if not np.array_equal(a, b, equal_nan=True):
            row = start + int(np.argmax((a != b).any(axis=1)))
            return f"unexpected {head}: differs from {embedding}, first in row {row}; {advice}"
    return None


def _names(checkpoint: CheckpointDirectory, family: Family, wanted: set[str]) -> Callable[[str], str]:
    """Return the function from stored to canonical names.

    Raises:
        CheckpointError: all names have a prefix unknown to the family.
    """
    names = list(checkpoint.names)
    if {family.canonical(raw) for raw in names} & (wanted - {HEAD}):
        return family.canonical
    # transformers' model without its head.
    if any(family.root + raw in wanted for raw in names):
        return lambda raw: family.root + raw if family.root + raw in wanted else family.canonical(raw)
    prefixes: Counter[str] = Counter()
    for raw in names:
        parts = raw.split(".")
        for i in range(1, len(parts)):
            if family.canonical(".".join(parts[i:])) in wanted:
                prefixes[".".join(parts[:i]) + "."] += 1
    if not prefixes:
        return family.canonical
    prefix, count = prefixes.most_common(1)[0]
    peft = "base_model" in prefix or any(".lora_" in raw or ".base_layer." in raw for raw in checkpoint.files)
    raise CheckpointError(
        checkpoint.path,
        f"{count} tensors of {len(names)} have the names of family {family.name} with the prefix "
        f"{prefix!r}, which no checkpoint of it has",
        "These are the weights inside a PEFT wrapper: save the model that merge_and_unload returns, or give the "
        "adapter's directory as adapter."
        if peft
        else "They were saved from inside a wrapper: save the wrapped model itself, or remove the prefix.",
    )


def _choose(checkpoint: CheckpointDirectory, weight: Weight, present: Mapping[str, str]) -> ChosenSource:
    def lacking(source: WeightSource) -> tuple[float, int]:
        """Return the missing share of tensors, and the number with another shape."""
        shapes = {name: checkpoint.shape(present[name]) for name in source.shapes if name in present}
        misfits = sum(tuple(source.shapes[name]) != tuple(shape) for name, shape in shapes.items())
        return 1 - len(shapes) / len(source.shapes), misfits

    source = min(weight.options, key=lacking)
    return ChosenSource(weight, source, {name: present.get(name, name) for name in source.shapes})


def _missing(
    checkpoint: CheckpointDirectory,
    family: Family,
    name: str,
    shape: tuple[int, ...],
    weight: Weight | None,
    present: Mapping[str, str],
) -> str:
    message = f"missing {name}: expected shape {shape}, found no tensor of that name"
    file = next((file for raw, file in checkpoint.unindexed.items() if family.canonical(raw) == name), None)
    if file is not None:
        message += f" in the index (but in {file.path.name})"
    if weight is not None and not any(present.keys() & source.shapes.keys() for source in weight.options):
        layouts = [next(iter(source.shapes)) for source in weight.options if name not in source.shapes]
        message += f" (nor the other layout, {', '.join(layouts)})"
    return message


def _misfit(checkpoint: CheckpointDirectory, name: str, raw: str, shape: tuple[int, ...]) -> list[str]:
    if raw in checkpoint.grouped.faults:
        return [f"unreadable {raw}: {checkpoint.grouped.faults[raw]}"]
    stored, dtype = checkpoint.shape(raw), checkpoint.stored_as(raw)
    faults: list[str] = []
    if stored != tuple(shape):
        faults.append(f"mis-shaped {raw}: expected {tuple(shape)}, found {stored}")
    if dtype not in READ:
        faults.append(f"unreadable {raw}: {unreadable(dtype)}")
    return faults
