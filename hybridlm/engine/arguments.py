"""Parts of an engine: dtypes and shards of parameters, and the assembled model."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from hybridlm.checkpoint import ParameterPath, Shards
from hybridlm.devices.placement import Placement
from models import Decoder, DecoderConfig, Family, Weight
from models.sharding.sharded_dim import ShardedDim


def check_commit(model: Decoder) -> None:
    """Raise ValueError with the names of layers that cannot verify drafts."""
    kinds = dict.fromkeys(map(type, model.without_commit()))
    if kinds:
        raise ValueError(
            f"speculate: expected layers that define commit(kept, info, state), which returns the state of the "
            f"accepted tokens; {', '.join(f'{kind.__module__}.{kind.__qualname__}' for kind in kinds)} has state and "
            "does not define it. Derive it from models.mixers.recurrent.Recurrent or add the method "
            "(docs/adding-a-family.md), or load with speculate=None"
        )


@lru_cache(maxsize=1)
def shard_specs_of(family: Family, config: DecoderConfig) -> dict[ParameterPath, tuple[ShardedDim, ...]]:
    """Return the shards of parameters, cached for several meshes."""
    return family.abstract(config).sharded_dims()


def shards_of_model(family: Family, config: DecoderConfig, placement: Placement) -> dict[ParameterPath, Shards]:
    cuts = shard_specs_of(family, config) if placement.devices.sharded else {}
    return placement.shards(family.weights(config), cuts)


def weight_types(
    weights: Iterable[Weight], shards: Mapping[ParameterPath, Shards], dtype: str
) -> dict[ParameterPath, jax.ShapeDtypeStruct]:
    """Return the types and shardings of all parameters, for `assemble`."""
    return {
        weight.path: jax.ShapeDtypeStruct(
            shards[weight.path].global_shape,
            jnp.dtype("float32" if weight.float32 else dtype),
            sharding=shards[weight.path].sharding,
        )
        for weight in weights
    }


def assemble(abstract: Decoder, arrays: Mapping[tuple[str | int, ...], Any]) -> tuple[Decoder, list[str]]:
    """Return the module with parameters or types, and its dotted names in flat order."""
    graph, state = nnx.split(abstract)
    flat: list[tuple[Any, Any]] = list(nnx.to_flat_state(state))
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(state)]
    names = [jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value") for path in paths]
    # A nested state's arrays would stay alive in a reference cycle after the model is gone.
    filled = nnx.statelib.FlatState([(path, variable.replace(arrays[path])) for path, variable in flat], sort=True)
    return nnx.merge(graph, filled), names
