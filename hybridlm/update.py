"""New weights for a loaded model: they are checked as a whole, then replace the old ones a layer at a time."""

import os
from collections.abc import Callable, Iterator, Mapping
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
    ParameterPath,
    Shards,
    dotted,
    fingerprint_of,
    load_parameters,
    open_checkpoint,
    resolve,
)
from hybridlm.checkpoint.content import content_fingerprint
from hybridlm.checkpoint.given_tensors import NAMES, given_checkpoint
from hybridlm.checkpoint.header_check import check
from hybridlm.checkpoint.model import family_of_model
from hybridlm.devices.placement import Placement
from hybridlm.engine.arguments import shards_of_model
from models import DecoderConfig, Family, Weight, family_of
from models.weights.sources import tensor

NewWeights = nnx.State | Mapping[str, Any] | str | os.PathLike[str]
"""Parameters as `LM.update` takes them."""
WHERE = "params"


@dataclass(frozen=True)
class ModelWeights:
    """The weights of a loaded model, without their numbers.

    Attributes:
        config: the whole model's.
        dtype: of the matrices.
        placement: the devices.
        types: shape, dtype and sharding of each parameter in memory, by name.
    """

    config: DecoderConfig
    dtype: str
    placement: Placement
    types: Mapping[str, jax.ShapeDtypeStruct]

    @property
    def family(self) -> Family:
        """The family whose files hold such weights."""
        return family_of_model(self.config)

    def shards(self, family: Family) -> Mapping[ParameterPath, Shards]:
        """Return the layout of each parameter over the devices."""
        return shards_of_model(family, self.config, self.placement)


@dataclass(frozen=True)
class Update:
    """New parameters that have been checked.

    Attributes:
        names: of the parameters that are replaced.
        fingerprint: returns the fingerprint of the updated model, after the parameters were read; None for arrays,
            which are hashed themselves.
        read: (names) -> these parameters, on their devices.
    """

    names: tuple[str, ...]
    fingerprint: Callable[[], Fingerprint] | None
    read: Callable[[tuple[str, ...]], dict[str, Array]]

    def layers(self) -> Iterator[tuple[str, ...]]:
        """Yield the names a layer at a time, so that little is in memory twice."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for name in self.names:
            parts = name.split(".")
            groups.setdefault(tuple(parts[:2] if parts[0] == "layers" else parts[:1]), []).append(name)
        yield from map(tuple, groups.values())


def checked_update(given: NewWeights, model: ModelWeights, partial_update: bool) -> Update:
    """Check new weights against a model; no parameter is read.

    Args:
        given: an `nnx.State`, arrays by the names of parameters or of a checkpoint's tensors, or a checkpoint.
        model: whose weights are replaced.
        partial_update: parameters may be missing.

    Raises:
        TypeError: something else is given.
        CheckpointError: every name, shape and dtype that does not fit.
    """
    if isinstance(given, str | os.PathLike):
        return _of_checkpoint(resolve(given), model, partial_update)
    if isinstance(given, nnx.State):
        flat: list[tuple[Any, Any]] = list(nnx.to_flat_state(given))
        given = {dotted(path): one[...] if isinstance(one, nnx.Variable) else one for path, one in flat}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise TypeError(
            f"params: expected an nnx.State, a dict of arrays by name or the path of a checkpoint, got {type(given)}"
        )
    wrong = [f"{name}: expected an array, found {type(one).__name__}" for name, one in given.items() if not _is(one)]
    if wrong:
        raise CheckpointError(WHERE, wrong)
    if set(given) & set(model.types) or not given:
        return _of_parameters(given, model, partial_update)
    family = model.family
    checkpoint = given_checkpoint(given, WHERE)
    if partial_update:
        family = replace(family, weights=partial(_those_in, family, frozenset(map(family.canonical, given))))
    names = tuple(dotted(choice.weight.path) for choice in check(checkpoint, family, model.config).choices)
    return Update(names, None, partial(_read, checkpoint, family, model))


def _is(one: Any) -> bool:
    return isinstance(one, jax.Array | np.ndarray)


def _those_in(family: Family, given: frozenset[str], config: DecoderConfig) -> list[Weight]:
    """Return the parameters of which some tensor is given."""
    return [
        weight
        for weight in family.weights(config)
        if any(name in given for source in weight.options for name in source.shapes)
    ]


def _read(checkpoint: Checkpoint, family: Family, model: ModelWeights, names: tuple[str, ...]) -> dict[str, Array]:
    only = [weight.path for weight in family.weights(model.config) if dotted(weight.path) in names]
    arrays, _ = load_parameters(checkpoint, family, model.config, model.dtype, None, model.shards(family), only=only)
    return {dotted(path): array for path, array in arrays.items()}


def _of_checkpoint(path: Path, model: ModelWeights, partial_update: bool) -> Update:
    if partial_update:
        raise ValueError("partial: expected arrays by name, a checkpoint has all parameters")
    checkpoint, family = open_checkpoint(path), model.family
    if checkpoint.config:
        family_of(checkpoint.config)
    found = family.read_config(checkpoint.config) if checkpoint.config else model.config
    kept = ("dtype", "unknown_keys", "eos_token_ids")
    here = replace(model.config, **{name: getattr(found, name) for name in kept})
    if found != here:
        raise CheckpointError(
            path, "config.json: expected the configuration of the model that is loaded; load this one"
        )
    grouped = getattr(checkpoint, "grouped", None)
    if (grouped is not None and grouped.quantised) or getattr(checkpoint, "packed", None):
        raise CheckpointError(
            path, "expected plain weights, these are quantised", "Load this checkpoint, or make plain ones of them."
        )
    names = tuple(dotted(weight.path) for weight in family.weights(model.config))
    # Every header is checked here.
    load_parameters(checkpoint, family, model.config, model.dtype, only=[])
    fingerprint = partial(fingerprint_of, checkpoint, model.dtype)
    return Update(names, fingerprint, partial(_read, checkpoint, family, model))


def _of_parameters(given: Mapping[str, Any], model: ModelWeights, partial_update: bool) -> Update:
    """Check arrays by the names of parameters: on the model's devices as they lie there, others as in checkpoints."""
    whole = {dotted(weight.path): weight for weight in model.family.weights(model.config)}
    faults: list[str] = []
    for name in given.keys() - model.types.keys():
        faults.append(f"unexpected {name}: the model has no such parameter")
    if not partial_update:
        faults += [
            f"missing {name}: expected shape {model.types[name].shape}" for name in model.types.keys() - given.keys()
        ]
    placed: dict[str, Array] = {}
    host: dict[str, Any] = {}
    for name, one in given.items():
        if name not in model.types:
            continue
        in_place = _lies_as(one, model, name)
        shape = model.types[name].shape if in_place else whole[name].shape
        if tuple(one.shape) != tuple(shape):
            faults.append(f"mis-shaped {name}: expected {tuple(shape)}, found {tuple(one.shape)}")
        if np.dtype(one.dtype) not in NAMES:
            faults.append(f"unreadable {name}: expected a float of 16 or 32 bits, found {one.dtype}")
        if isinstance(one, jax.Array) and not in_place and _over_devices(one):
            faults.append(
                f"{name}: expected an array sharded as lm.params has it, or one of one device, found {one.sharding}"
            )
        (placed if in_place else host)[name] = one
    if faults:
        advice = "" if partial_update else "partial=True keeps the parameters that are not given."
        raise CheckpointError(WHERE, sorted(faults), advice if any("missing" in one for one in faults) else "")
    faults = [f"{name}: holds numbers beyond {model.types[name].dtype}" for name in _overflowing(placed, model)]
    if faults:
        raise CheckpointError(WHERE, faults)
    weights = partial(_as_they_are, model.family, frozenset(host))
    family = replace(model.family, weights=weights, skipped=(), prefixes=(), root="")
    checkpoint = given_checkpoint(host, WHERE)

    def read(names: tuple[str, ...]) -> dict[str, Array]:
        found = _read(checkpoint, family, model, names) if host.keys() & set(names) else {}
        return found | {name: _converted(placed[name], model.types[name]) for name in names if name in placed}

    return Update(tuple(given), None, read)


def _as_they_are(family: Family, given: frozenset[str], config: DecoderConfig) -> list[Weight]:
    """Return parameters, each made of one tensor of its own name."""
    return [
        tensor(weight.path, dotted(weight.path), weight.shape, weight.float32)
        for weight in family.weights(config)
        if dotted(weight.path) in given
    ]


def _over_devices(one: Array) -> bool:
    return len(one.sharding.device_set) > 1


def _lies_as(one: Any, model: ModelWeights, name: str) -> bool:
    """Whether an array lies on the devices as the parameter does."""
    if not isinstance(one, jax.Array) or one.ndim != len(model.types[name].shape):
        return False
    sharding = model.types[name].sharding
    return sharding is not None and one.sharding.is_equivalent_to(sharding, one.ndim)


def _converted(one: Array, kind: jax.ShapeDtypeStruct) -> Array:
    return one if one.dtype == kind.dtype else one.astype(kind.dtype)


def _overflowing(placed: Mapping[str, Array], model: ModelWeights) -> list[str]:
    """Return the names of arrays with a finite number that the parameter's dtype cannot hold."""
    narrower = {name: one for name, one in placed.items() if one.dtype != model.types[name].dtype}
    lost = {
        name: _infinite(one, cast(Any, model.types[name].dtype))
        for name, one in narrower.items()
        if model.types[name].dtype != jnp.float32
    }
    return [name for name, found in jax.device_get(lost).items() if found]


@partial(jax.jit, static_argnums=1)
def _infinite(one: Array, dtype: Any) -> Array:
    return jnp.any(jnp.isinf(one.astype(dtype)) & jnp.isfinite(one))


def fingerprint_after(update: Update, params: Mapping[str, Array], config: DecoderConfig) -> Fingerprint:
    """Return the fingerprint of a model with new weights."""
    if update.fingerprint is None:
        return Fingerprint(content_fingerprint(params, repr(config)))
    return update.fingerprint()
