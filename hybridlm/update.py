"""New weights of a loaded model: checked as a whole, replaced layer by layer."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from hybridlm.checkpoint import (
    Checkpoint,
    CheckpointError,
    Fingerprint,
    OpenModel,
    ParameterPath,
    Shards,
    dotted,
    fingerprint_of,
    load_parameters,
    open_checkpoint,
    resolve,
)
from hybridlm.checkpoint.generation_config import NAME, read_generation
from hybridlm.checkpoint.given_tensors import NAMES, WHERE, content_fingerprint, given_checkpoint, imported
from hybridlm.checkpoint.header_check import check
from hybridlm.checkpoint.model import family_of_model
from hybridlm.devices.placement import Placement
from hybridlm.engine.arguments import shards_of_model
from hybridlm.text.tokenizer import Tokenizer
from models import DecoderConfig, Family, Weight, family_of
from models.weights.sources import tensor

NewWeights = nnx.State | Mapping[str, Any] | str | os.PathLike[str]


@dataclass(frozen=True)
class ModelWeights:
    """Description of a loaded model's weights.

    Attributes:
        types: in memory, by name.
        tokenizer, eos_token_ids: of the loaded files.
    """

    config: DecoderConfig
    dtype: str
    placement: Placement
    types: Mapping[str, jax.ShapeDtypeStruct]
    tokenizer: Tokenizer | None = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    def family(self) -> Family:
        return family_of_model(self.config)

    def shards(self, family: Family) -> Mapping[ParameterPath, Shards]:
        return shards_of_model(family, self.config, self.placement)


@dataclass(frozen=True)
class Update:
    """Checked new parameters.

    Attributes:
        fingerprint: (all updated parameters by name) -> fingerprint.
        read: (names) -> parameters, on their devices.
    """

    names: tuple[str, ...]
    fingerprint: Callable[[Mapping[str, Array]], Fingerprint]
    read: Callable[[tuple[str, ...]], dict[str, Array]]

    def layers(self) -> Iterator[tuple[str, ...]]:
        """Yield the names of each layer, so that one layer is in memory twice."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for name in self.names:
            parts = name.split(".")
            groups.setdefault(tuple(parts[:2] if parts[0] == "layers" else parts[:1]), []).append(name)
        yield from map(tuple, groups.values())


def checked_update(source: NewWeights, model: ModelWeights, partial_update: bool) -> Update:
    """Check new weights without reading a parameter.

    Args:
        source: an `nnx.State`, arrays or DLPack tensors by names of parameters or checkpoint tensors, or a checkpoint.
        partial_update: missing parameters stay.

    Raises:
        CheckpointError: every wrong name, shape and dtype.
    """
    if isinstance(source, str | os.PathLike):
        return _checkpoint_update(resolve(source), model, partial_update)
    if isinstance(source, nnx.State):
        flat: list[tuple[Any, Any]] = list(nnx.to_flat_state(source))
        source = {dotted(path): value[...] if isinstance(value, nnx.Variable) else value for path, value in flat}
    if not isinstance(source, Mapping) or not all(isinstance(name, str) for name in source):
        raise TypeError(
            f"params: expected an nnx.State, a dict of arrays by name or the path of a checkpoint, got {type(source)}"
        )
    arrays: dict[str, np.ndarray | Array] = {}
    faults: list[str] = []
    for name, value in source.items():
        try:
            arrays[name] = imported(value)
        except (TypeError, ValueError) as error:
            faults.append(f"{name}: {error}")
    if faults:
        raise CheckpointError(WHERE, faults)
    if arrays.keys() & model.types.keys() or not arrays:
        # Memory of another library is copied: its owner may change it later.
        in_place = {
            name for name, value in source.items() if isinstance(value, Array) and _is_in_place(value, model, name)
        }
        return _parameter_update(arrays, in_place, model, partial_update)
    family, checkpoint = model.family, given_checkpoint(arrays)
    if partial_update:
        family = replace(family, weights=partial(_weights_of, family, frozenset(map(family.canonical, arrays))))
    names = tuple(dotted(choice.weight.path) for choice in check(checkpoint, family, model.config).choices)
    return Update(names, partial(_content_fingerprint, model), partial(_read, checkpoint, family, model))


def _content_fingerprint(model: ModelWeights, params: Mapping[str, Array]) -> Fingerprint:
    return Fingerprint(content_fingerprint(params, repr(model.config)))


def _weights_of(family: Family, names: frozenset[str], config: DecoderConfig) -> list[Weight]:
    return [
        weight
        for weight in family.weights(config)
        if any(name in names for source in weight.options for name in source.shapes)
    ]


def _read(checkpoint: Checkpoint, family: Family, model: ModelWeights, names: tuple[str, ...]) -> dict[str, Array]:
    only = [weight.path for weight in family.weights(model.config) if dotted(weight.path) in names]
    opened = OpenModel(checkpoint, family, model.config)
    loaded = load_parameters(opened, model.dtype, None, model.shards(family), only=only)
    return {dotted(path): array for path, array in loaded.arrays.items()}


def _checkpoint_update(path: Path, model: ModelWeights, partial_update: bool) -> Update:
    if partial_update:
        raise ValueError("partial: expected arrays by name, a checkpoint has all parameters")
    checkpoint, family = open_checkpoint(path), model.family
    if checkpoint.config:
        family_of(checkpoint.config)
        config = family.read_config(checkpoint.config)
        free = {name: getattr(config, name) for name in ("dtype", "unknown_keys", "eos_token_ids")}
        if config != replace(model.config, **free):
            raise CheckpointError(
                path, "config.json: expected the configuration of the model that is loaded; load this one"
            )
        if faults := _faults_of_texts(checkpoint, config, model):
            advice = "Load this one; or give its tensors, which takes them without its other files."
            raise CheckpointError(path, faults, advice)
    grouped = getattr(checkpoint, "grouped", None)
    if (grouped is not None and grouped.quantised) or getattr(checkpoint, "packed", None):
        raise CheckpointError(
            path, "expected plain weights, these are quantised", "Load this checkpoint, or make plain ones of them."
        )
    names = tuple(dotted(weight.path) for weight in family.weights(model.config))
    # Every header is checked here.
    load_parameters(OpenModel(checkpoint, family, model.config), model.dtype, only=[])
    return Update(
        names, lambda params: fingerprint_of(checkpoint, model.dtype), partial(_read, checkpoint, family, model)
    )


def _faults_of_texts(checkpoint: Checkpoint, config: DecoderConfig, model: ModelWeights) -> list[str]:
    """Return the differences from the loaded tokenizer, templates and end tokens."""
    old = model.eos_token_ids if (checkpoint.path / NAME).exists() else model.config.eos_token_ids
    new, _ = read_generation(checkpoint.path, config.eos_token_ids)
    faults = [f"end tokens: expected {sorted(old)}, found {sorted(new)}"] if new and set(new) != set(old) else []
    tokenizer, loaded = Tokenizer.from_dir(checkpoint.path), model.tokenizer
    if tokenizer is None or loaded is None:
        return faults
    pairs = {
        "tokenizer": (tokenizer.fingerprint, loaded.fingerprint),
        "chat templates": (tokenizer.chat_templates, loaded.chat_templates),
        "special tokens": (tokenizer.special_tokens, loaded.special_tokens),
    }
    names = [name for name, (value, expected) in pairs.items() if value and value != expected]
    return [*faults, *(f"{name}: expected those of the loaded model, found others" for name in names)]


def _parameter_update(
    arrays: Mapping[str, np.ndarray | Array], in_place: Collection[str], model: ModelWeights, partial_update: bool
) -> Update:
    """Check arrays by the names of parameters.

    Args:
        arrays: `in_place` as `model.types`, others as in a checkpoint.
        in_place: with their parameters' sharding, used without a copy.
    """
    shapes = {dotted(weight.path): tuple(weight.shape) for weight in model.family.weights(model.config)}
    shapes |= {name: tuple(model.types[name].shape) for name in in_place}
    missing = [] if partial_update else sorted(model.types.keys() - arrays.keys())
    faults = [f"unexpected {name}: the model has no such parameter" for name in arrays.keys() - model.types.keys()]
    faults += [f"missing {name}: expected shape {model.types[name].shape}" for name in missing]
    for name in arrays.keys() & model.types.keys():
        array = arrays[name]
        if name not in in_place and isinstance(array, Array) and not array.is_fully_replicated:
            faults.append(
                f"{name}: expected an array sharded as lm.params has it, or whole on each device, "
                f"found {array.sharding}"
            )
        elif tuple(array.shape) != shapes[name]:
            faults.append(f"mis-shaped {name}: expected {shapes[name]}, found {tuple(array.shape)}")
        elif np.dtype(array.dtype) not in NAMES:
            faults.append(f"unreadable {name}: expected a float of 16 or 32 bits, found {array.dtype}")
    if faults:
        advice = "partial=True keeps the parameters that are not given." if missing else ""
        raise CheckpointError(WHERE, sorted(faults), advice)
    placed = {name: cast(Array, arrays[name]) for name in in_place}
    faults = [f"{name}: holds numbers beyond {model.types[name].dtype}" for name in _overflowing(placed, model)]
    if faults:
        raise CheckpointError(WHERE, faults)
    host = {name: array for name, array in arrays.items() if name not in in_place}
    weights = partial(_weights_by_path, model.family, frozenset(host))
    family = replace(model.family, weights=weights, skipped=(), prefixes=(), root="")
    checkpoint = given_checkpoint(host)

    def read(names: tuple[str, ...]) -> dict[str, Array]:
        copied = _read(checkpoint, family, model, names) if host.keys() & set(names) else {}
        return copied | {name: _converted(placed[name], model.types[name]) for name in names if name in placed}

    return Update(tuple(arrays), partial(_content_fingerprint, model), read)


def _weights_by_path(family: Family, names: frozenset[str], config: DecoderConfig) -> list[Weight]:
    """Return the parameters as checkpoint tensors of the same names."""
    return [
        tensor(weight.path, dotted(weight.path), weight.shape, weight.float32)
        for weight in family.weights(config)
        if dotted(weight.path) in names
    ]


def _is_in_place(array: Array, model: ModelWeights, name: str) -> bool:
    kind = model.types.get(name)
    if kind is None or kind.sharding is None or array.ndim != len(kind.shape):
        return False
    return array.sharding.is_equivalent_to(kind.sharding, array.ndim)


def _converted(array: Array, kind: jax.ShapeDtypeStruct) -> Array:
    return array if array.dtype == kind.dtype else array.astype(kind.dtype)


def _overflowing(placed: Mapping[str, Array], model: ModelWeights) -> list[str]:
    """Return the names of arrays with finite values that overflow the parameter's dtype."""
    overflows = {
        name: _overflows(array, cast(Any, model.types[name].dtype))
        for name, array in placed.items()
        if model.types[name].dtype not in (array.dtype, jnp.float32)
    }
    return [name for name, overflow in jax.device_get(overflows).items() if overflow]


@partial(jax.jit, static_argnums=1)
def _overflows(array: Array, dtype: Any) -> Array:
    return jnp.any(jnp.isinf(array.astype(dtype)) & jnp.isfinite(array))
