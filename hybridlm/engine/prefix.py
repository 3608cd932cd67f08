"""Prefixes that are prefilled once and continued many times, and their files (safetensors).

Keys and values have the seen positions only. The metadata are `format`, `label`, `token_ids` (JSON) and `sha256` of
these and the arrays, against accidental damage, not malice.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hybridlm.checkpoint import ArrayFile, CheckpointError, open_safetensors
from hybridlm.checkpoint.safetensors import NAMES, Types, write_safetensors
from hybridlm.engine.engine import Engine
from hybridlm.files.atomic import replacing
from hybridlm.rows.snapshot import (
    ArrayLayout,
    Snapshot,
    SnapshotError,
    StateKind,
    nothing_consumed,
    token_hash,
)
from ir_passes.files.strict_json import parse_json
from ir_passes.host.slot_faults import OneHolder

FORMAT = "hybridlm snapshot 2"
"""Version 1 held recurrent states as [key, value], of the same shape if both have one size."""


@dataclass(frozen=True, eq=False)
class Prefix(OneHolder):
    """A prefix of prompts or texts, prefilled once; `LM.prefix` makes it.

    Its state ends before the last token: each continuation consumes that token, to predict the next one.

    Attributes:
        token_ids: tokens of the prefix, at least one.
        snapshot: the state after all of them but the last.
    """

    _instead = "write it with save and read it with lm.load_prefix"
    token_ids: tuple[int, ...]
    snapshot: Snapshot

    def __len__(self) -> int:
        return len(self.token_ids)

    def __repr__(self) -> str:
        return f"Prefix({len(self)} tokens, {self.nbytes / 1e6:.1f} MB)"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a safetensors file for `LM.load_prefix`.

        Raises:
            OSError, ValueError: the file cannot be written; an older one is unchanged.
        """
        save_snapshot(Path(path), self.token_ids, self.snapshot)

    @property
    def nbytes(self) -> int:
        """Bytes of its state on the device, freed with the prefix."""
        return self.snapshot.nbytes


def save_snapshot(path: Path, tokens: tuple[int, ...], snapshot: Snapshot) -> None:
    """Write the state after all tokens except the last, atomically.

    Raises:
        SnapshotError: the state has not seen these tokens.
    """
    snapshot.require_tokens(tokens)
    arrays, layout = _arrays(snapshot), snapshot.kind.layout
    described = {**_described(snapshot.kind, snapshot.position, snapshot.tokens), "epoch": snapshot.epoch}
    metadata = {"format": FORMAT, "label": json.dumps(described), "token_ids": json.dumps(tokens)}
    types = _types(layout, snapshot.position)
    metadata["sha256"] = _hash(metadata, iter(arrays))
    with replacing(path) as file:
        write_safetensors(file.buffer, types, iter(arrays), metadata)


def load_snapshot(
    engine: Engine, path: Path, to_tokens: Callable[[Any, str], tuple[int, ...]]
) -> tuple[tuple[int, ...], Snapshot]:
    """Read tokens and state from a file of `save_snapshot`.

    Raises:
        SnapshotError: missing, damaged, or of another model.
        TypeError, ValueError: token ids outside the vocabulary or the context.
    """
    engine.placement.require_one_process("load_prefix")
    try:
        file = open_safetensors(path)
    except CheckpointError as error:
        raise SnapshotError(f"no saved state can be read: {error}") from error
    if set(file.metadata) != {"format", "label", "token_ids", "sha256"} or file.metadata["format"] != FORMAT:
        raise SnapshotError(
            f"{path}: expected a state saved as {FORMAT!r}, found the metadata {sorted(file.metadata)} and the format "
            f"{file.metadata.get('format')!r}; compute it again"
        )
    label, ids = (_json(path, name, file.metadata[name]) for name in ("label", "token_ids"))
    tokens = to_tokens(ids, f"{path}: token_ids")
    position = len(tokens) - 1
    _require_label(path, label, engine, tokens[:position])
    arrays = _read(path, file, engine.kind.layout, position)
    if _hash(file.metadata, iter(arrays)) != file.metadata["sha256"]:
        raise SnapshotError(f"{path}: its content is not what was saved (SHA-256); compute it again")
    if not position:
        return tokens, nothing_consumed(engine.kind)
    return tokens, engine.moves.filled(arrays, position, label["tokens"], label["epoch"])


def _described(kind: StateKind, position: int, tokens: str) -> dict[str, Any]:
    """Return a label as JSON without its epoch."""
    return {
        "model": str(kind.model),
        "dtype": kind.dtype,
        "context": kind.context,
        "layout": [_layout(array) for array in kind.layout],
        "position": position,
        "tokens": tokens,
    }


def _layout(array: ArrayLayout) -> list[Any]:
    """Return an array's layout as JSON."""
    return [array.path, list(array.shape), array.dtype, array.positions] + (
        [array.devices] if array.devices > 1 else []
    )


def _types(layout: tuple[ArrayLayout, ...], position: int) -> Types:
    """Return the types in a file, with the seen positions."""

    def shape(array: ArrayLayout) -> tuple[int, ...]:
        return tuple(position if axis == array.positions else size for axis, size in enumerate(array.shape))

    return {array.path: (shape(array), array.dtype) for array in layout} if position else {}


def _arrays(snapshot: Snapshot) -> list[np.ndarray]:
    if snapshot.state is None:
        return []
    state = iter(jax.device_get(snapshot.state.arrays))
    spans = [(jax.device_get(buffers.arrays), range(first, first + count)) for buffers, first, count in snapshot.spans]
    results, grown = [], 0
    for layout in snapshot.kind.layout:
        if layout.positions is None:
            results.append(next(state)[0])
        else:
            parts = [arrays[grown][0].take(places, layout.positions) for arrays, places in spans]
            results.append(np.concatenate(parts, layout.positions))
            grown += 1
    return results


def _hash(metadata: Mapping[str, str], arrays: Iterator[np.ndarray]) -> str:
    digest = hashlib.sha256(json.dumps([metadata[name] for name in ("format", "label", "token_ids")]).encode())
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()


def _json(path: Path, name: str, text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise SnapshotError(f"{path}: {name} cannot be read as JSON: {error}") from error


def _require_label(path: Path, label: Any, engine: Engine, consumed: tuple[int, ...]) -> None:
    expected = _described(engine.kind, len(consumed), token_hash(consumed))
    if not isinstance(label, dict) or set(label) != {*expected, "epoch"}:
        raise SnapshotError(
            f"{path}: label: expected an object of {', '.join(expected)} and epoch, found {label!r:.200}"
        )
    faults = [
        f"{name}: expected {value!r:.200}, found {label[name]!r:.200}"
        for name, value in expected.items()
        if type(label[name]) is not type(value) or label[name] != value
    ]
    if type(label["epoch"]) is not int or not 0 <= label["epoch"] < 2**63:
        faults.append(f"epoch: expected a whole number of at least 0, found {label['epoch']!r:.200}")
    if faults:
        raise SnapshotError(
            f"{path}: the state is not one of this model after these tokens: {'; '.join(faults)}; compute it again"
        )


def _read(path: Path, file: ArrayFile, layout: tuple[ArrayLayout, ...], position: int) -> list[np.ndarray]:
    types = _types(layout, position)
    expected = {name: (NAMES[dtype], shape) for name, (shape, dtype) in types.items()}
    stored = {name: (info.dtype, info.shape) for name, info in file.tensors.items()}
    if expected != stored:
        wrong = sorted(name for name in {*expected, *stored} if expected.get(name) != stored.get(name))
        raise SnapshotError(
            f"{path}: arrays {wrong[:5]}: expected {[expected.get(name) for name in wrong[:5]]}, found "
            f"{[stored.get(name) for name in wrong[:5]]}"
        )
    return [np.array(file.read_stored(name)).view(dtype) for name, (_, dtype) in types.items()]
