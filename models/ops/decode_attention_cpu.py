"""Kernels for CPUs that write the keys and values of tokens to a KV cache and attend from each token to its lane.

`append` and `attend` in `models.mixers.kv_cache` define them. They are C++, which no proof reads: a contract declares
each call by its target, and a step writes to its pool of caches.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float32

from models.cpu_kernels import library
from models.ops.kernels import Kernel, PoolKernel
from models.ops.row_product import DTYPES, instruction_number
from models.state.shapes import KeyCache, Lengths, Positions, ValueCache
from models.state.state import name_dims

ATTENTION = "hybridlm_decode_attention"
"""Target of a call that takes lengths, positions, query, key, value and the caches of keys and values, and returns the
output and both caches, in the memory of the old ones. Row i of a cache is that of lane i."""
LATENT_ATTENTION = "hybridlm_latent_decode_attention"
"""Target of a call without values: they are the first numbers of the keys."""
_KEYS, _VALUES = "row kv_head position key", "row kv_head position value"
POOL_KERNELS = {
    ATTENTION: PoolKernel("length lane lane lane lane", (_KEYS, _VALUES)),
    LATENT_ATTENTION: PoolKernel("length lane lane lane", (_KEYS,)),
}

Caches = tuple[KeyCache, ValueCache | None]
Vectors = Float32[Array, "lane token head size"]


class AttentionInputs(NamedTuple):
    """Operands of attention of the tokens of a step, which are written to the caches first.

    Attributes:
        query: scaled queries, `[lane, token, head, key]`.
        key, value: of the tokens, `[lane, token, kv_head, size]`; without a value it is the first numbers of a key.
        caches: of keys and of values, None where there are none.
        lengths: real tokens of each lane; the others are padding.
        positions: position of each lane's first token.
    """

    query: Vectors
    key: Vectors
    value: Vectors | None
    caches: Caches
    lengths: Lengths
    positions: Positions


AttentionForm = Callable[[AttentionInputs], tuple[Vectors, Caches]]


def unsupported(inputs: AttentionInputs, value_size: int) -> str | None:
    """Return why the kernels do not take these operands, None if they do."""
    keys, values = inputs.caches
    if any(one is not None and one.dtype != jnp.float32 for one in inputs[:3]):
        return "queries, keys or values of another dtype than float32"
    if str(keys.dtype) not in DTYPES or (values is not None and values.dtype != keys.dtype):
        return f"a cache of {keys.dtype}: expected {' or '.join(DTYPES)}"
    if inputs.query.shape[3] != keys.shape[3] or (values is not None and values.shape[3] != value_size):
        return "keys or values that are stored in more numbers than they have"
    if any(jax.typeof(one).mat.varying for one in jax.tree.leaves(inputs)):
        return "a value for each device of a mesh"  # steps in place over a mesh are neither proved nor tested
    return "the library of kernels is not there" if library() is None else None


KERNEL = Kernel(ATTENTION, ("cpu",), unsupported, interpreted=False)


def decode_attention_cpu(
    inputs: AttentionInputs, value_size: int, *, instructions: str | None = None
) -> tuple[Vectors, Caches]:
    """Write the keys and values of the tokens to the caches, and attend from each token to its lane up to itself.

    The bits of a lane are the same whatever the other lanes are, and however many, with one instruction set; and those
    of several tokens in one step are those of as many steps of one. Tokens past the end of the caches are not written.

    Args:
        inputs: of a whole step.
        value_size: numbers of a value.
        instructions: one of `INSTRUCTIONS` that the processor runs; None for the fastest.

    Returns:
        Outputs, zero at padding tokens, and the caches.
    """
    q, k, v, caches, lengths, positions = inputs
    # A proof sees nothing being written: names that are not those which the arrays have already are a conflict.
    k = name_dims(k, None, None, "kv_head", "key")
    v = None if v is None else name_dims(v, None, None, "kv_head", "value")
    held, tree = jax.tree.flatten(caches)
    operands = [lengths, positions, q, k, *([] if v is None else [v]), *held]
    out, *after = jax.ffi.ffi_call(
        LATENT_ATTENTION if v is None else ATTENTION,
        [
            jax.ShapeDtypeStruct((*q.shape[:3], value_size), jnp.float32),
            *(jax.ShapeDtypeStruct(one.shape, one.dtype) for one in held),
        ],
        vmap_method="sequential",
        input_output_aliases={len(operands) - len(held) + k: 1 + k for k in range(len(held))},
    )(*operands, instructions=instruction_number(instructions))
    return out, jax.tree.unflatten(tree, after)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def attention_of(plain: AttentionForm, value_size: int, inputs: AttentionInputs) -> tuple[Vectors, Caches]:
    """Return `decode_attention_cpu`, with the derivatives of the plain form that it computes."""
    return decode_attention_cpu(inputs, value_size)


@attention_of.defjvp
def _derivative(plain: AttentionForm, value_size: int, inputs: Any, tangents: Any) -> Any:
    return attention_of(plain, value_size, *inputs), jax.jvp(plain, inputs, tangents)[1]
