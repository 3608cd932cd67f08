"""Arguments of an engine: their checks, their defaults, and the model assembled for it."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from hybridlm.checkpoint import ParameterPath, Shards
from hybridlm.devices.placement import Placement
from hybridlm.drafting.drafters import Speculate, drafters
from hybridlm.programs.compilation_cache import is_cache
from hybridlm.programs.programs import CERTIFY
from models import Decoder, DecoderConfig, Family, Weight
from models.sharding.sharded_dim import ShardedDim

DTYPES = ("bfloat16", "float16", "float32")
DEFAULT_CONTEXT = 4096
DEFAULT_CHUNK = 128


def dtype_of_caches(dtype: str, platform: str) -> Any:
    """Return the dtype of convolution states and KV cache for a model whose matrices have `dtype`, on a platform."""
    # XLA:CPU converts a whole bfloat16 cache to float32 and back for every scatter.
    return jnp.dtype("float32" if platform == "cpu" else dtype)


def dtype_of_dequantised(dequantise: str, dtype: str | None) -> str:
    """Return the dtype of a model whose quantised weights are read as plain arrays.

    Raises:
        ValueError: an unknown dtype, or two that differ.
    """
    if dequantise not in DTYPES:
        raise ValueError(f"dequantise: expected one of {', '.join(DTYPES)} or None, got {dequantise!r}")
    if dtype not in (None, dequantise):
        raise ValueError(f"dequantise: expected the dtype of the model, {dtype!r}, got {dequantise!r}")
    return dequantise


def check_arguments(
    config: DecoderConfig,
    lanes: int,
    context: int | None,
    chunk: int | None,
    dtype: str | None,
    certify: str,
    cache: Any,
    default_chunk: int = DEFAULT_CHUNK,
) -> tuple[int, int]:
    """Return the context and the chunk; raises ValueError with everything that is wrong."""
    faults = []

    def whole(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            faults.append(f"{name}: expected a whole number of at least 1, got {value!r}")
            return 1
        return value

    most = config.max_position_embeddings
    whole("lanes", lanes)
    before = len(faults)
    context = min(DEFAULT_CONTEXT, most) if context is None else whole("context", context)
    if context > most:
        faults.append(f"context: {context} is more than the model's max_position_embeddings ({most})")
    context_is_good = len(faults) == before
    chunk = min(default_chunk, context) if chunk is None else whole("chunk", chunk)
    if context_is_good and chunk > context:
        faults.append(f"chunk: {chunk} is more than the context ({context})")
    if dtype is not None and dtype not in DTYPES:
        faults.append(f"dtype: expected one of {', '.join(DTYPES)} or None, got {dtype!r}")
    if certify not in CERTIFY:
        faults.append(f"certify: expected one of {', '.join(CERTIFY)}, got {certify!r}")
    if not is_cache(cache):
        faults.append(f"compilation_cache: expected a directory, None for the default one or False, got {cache!r}")
    if faults:
        raise ValueError("; ".join(faults))
    return context, chunk


def check_commit(model: Decoder) -> None:
    """Raise ValueError, which names the layers, unless all of them can verify drafts."""
    kinds = dict.fromkeys(map(type, model.without_commit()))
    if kinds:
        raise ValueError(
            f"speculate: expected layers that define commit(kept, info, state), which returns the state of the "
            f"accepted tokens; {', '.join(f'{kind.__module__}.{kind.__qualname__}' for kind in kinds)} has state and "
            "does not define it. Derive it from models.mixers.recurrent.Recurrent or add the method "
            "(docs/adding-a-family.md), or load with speculate=None"
        )


def check_drafting(speculate: Speculate, draft_tokens: int, context: int) -> None:
    """Check the drafter and the number of drafts.

    Raises:
        TypeError: `speculate` is not a drafter.
        ValueError: it names an unknown drafter, or the drafts do not fit the context.
    """
    drafters(speculate)
    if isinstance(draft_tokens, bool) or not isinstance(draft_tokens, int) or not 1 <= draft_tokens < context:
        raise ValueError(
            f"draft_tokens: expected a whole number of at least 1 and less than the context ({context}), got "
            f"{draft_tokens!r}"
        )


@lru_cache(maxsize=1)
def shard_specs_of(family: Family, config: DecoderConfig) -> dict[ParameterPath, tuple[ShardedDim, ...]]:
    """Return the shards of a whole model's parameters; cached, since one model is often planned for several meshes."""
    return family.abstract(config).sharded_dims()


def shards_of_model(family: Family, config: DecoderConfig, placement: Placement) -> dict[ParameterPath, Shards]:
    """Return the layout of each parameter of a whole model over the devices."""
    cuts = shard_specs_of(family, config) if placement.devices.sharded else {}
    return placement.shards(family.weights(config), cuts)


def weight_types(
    weights: Iterable[Weight], shards: Mapping[ParameterPath, Shards], dtype: str
) -> dict[ParameterPath, jax.ShapeDtypeStruct]:
    """Return shape, dtype and place of each parameter, as `assemble` takes them in place of the arrays."""
    return {
        weight.path: jax.ShapeDtypeStruct(
            shards[weight.path].global_shape,
            jnp.dtype("float32" if weight.float32 else dtype),
            sharding=shards[weight.path].sharding,
        )
        for weight in weights
    }


def assemble(abstract: Decoder, arrays: Mapping[tuple[str | int, ...], Any]) -> tuple[Decoder, list[str]]:
    """Return the module with its parameters (or their types), and their dotted names in the order of the flat tuple."""
    graph, state = nnx.split(abstract)
    flat: list[tuple[Any, Any]] = list(nnx.to_flat_state(state))
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(state)]
    names = [jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value") for path in paths]
    # Merging a nested state would keep its arrays alive in a reference cycle after the model is gone.
    whole = nnx.statelib.FlatState([(path, one.replace(arrays[path])) for path, one in flat], sort=True)
    return nnx.merge(graph, whole), names
