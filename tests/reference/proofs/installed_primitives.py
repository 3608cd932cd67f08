"""Primitives of the installed JAX and their batching, from private tables."""

import json
from typing import Any

import jax._src.lax.linalg
import jax._src.pallas.mpmd
import jax._src.pallas.pallas_call
import jax._src.random
import jax._src.shard_map  # noqa: F401  (each import registers primitives)
from jax._src.interpreters import batching
from jax.extend.core import primitives as public


def primitives() -> list[Any]:
    """All primitives that are public or can be batched, in all imported modules."""
    results = [getattr(public, name) for name in dir(public) if name.endswith("_p")]
    return [*results, *batching.fancy_primitive_batchers]


def installed() -> set[str]:
    """Their names."""
    return {primitive.name for primitive in primitives()}


def elementwise() -> set[str]:
    """Names of the primitives that JAX batches element by element."""
    kinds = ("vectorized_batcher", "broadcast_batcher")
    table = batching.fancy_primitive_batchers
    return {primitive.name for primitive, rule in table.items() if any(kind in repr(rule) for kind in kinds)}


if __name__ == "__main__":
    print(json.dumps({"installed": sorted(installed()), "elementwise": sorted(elementwise())}))
