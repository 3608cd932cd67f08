"""CPU kernels: append to a KV cache, then attend from each token.

Defined by `append` and `attend` in `models.mixers.kv_cache`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float32

from models.ops.kernels import Kernel, PoolKernel, cpu_call
from models.ops.row_product import DTYPES
from models.state.pages import Pages
from models.state.shapes import KeyCache, Lengths, Positions, ValueCache
from models.state.state import name_dims

ATTENTION = "hybridlm_decode_attention"
"""Call target: (pages, lengths, positions, window, query, key, value, caches) -> (output, caches, in place)."""
LATENT_ATTENTION = "hybridlm_latent_decode_attention"
"""Call target without values: the first numbers of the keys."""
_KEYS, _VALUES = "page kv_head position key", "page kv_head position value"
PAGED_KERNELS = {
    ATTENTION: PoolKernel("length lane shared lane lane lane", (_KEYS, _VALUES)),
    LATENT_ATTENTION: PoolKernel("length lane shared lane lane", (_KEYS,)),
}

Caches = tuple[KeyCache, ValueCache | None]
Vectors = Float32[Array, "lane token head size"]


class AttentionInputs(NamedTuple):
    """Operands of attention.

    Attributes:
        query: scaled queries, `[lane, token, head, key]`.
        key, value: `[lane, token, kv_head, size]`; value None: the first numbers of the key.
        positions: of first tokens.
        pages: page table; written pages belong to one lane.
    """

    query: Vectors
    key: Vectors
    value: Vectors | None
    caches: Caches
    lengths: Lengths
    positions: Positions
    pages: Pages


AttentionForm = Callable[[AttentionInputs], tuple[Vectors, Caches]]


def supports(inputs: AttentionInputs, value_size: int) -> bool:
    keys, values = inputs.caches
    if any(vectors is not None and vectors.dtype != jnp.float32 for vectors in inputs[:3]):
        return False
    if str(keys.dtype) not in DTYPES or inputs.query.shape[3] != keys.shape[3]:
        return False
    if values is not None and (values.dtype != keys.dtype or values.shape[3] != value_size):
        return False
    # Steps in place over a mesh are neither proved nor tested.
    return not any(jax.typeof(array).mat.varying for array in jax.tree.leaves(inputs))


KERNEL = Kernel(ATTENTION, "cpu", supports)


def decode_attention_cpu(
    inputs: AttentionInputs, value_size: int, window: int | None = None, *, instructions: str | None = None
) -> tuple[Vectors, Caches]:
    """Write keys and values to the caches, and attend from each token.

    A lane's bits depend on its tokens and the instruction set only; T tokens have the bits of T steps. Tokens without a
    page are not written.

    Args:
        window: as for `AttentionConfig`.
        instructions: of `INSTRUCTIONS`; None for the fastest.

    Returns:
        Outputs, zero at padding, and the caches.
    """
    q, k, v, caches, lengths, positions, pages = inputs
    # The proof cannot see the write; wrong names of dimensions still conflict.
    k = name_dims(k, None, None, "kv_head", "key")
    v = None if v is None else name_dims(v, None, None, "kv_head", "value")
    arrays, tree = jax.tree.flatten(caches)
    # An operand: one program for all windows.
    window_size = jnp.int32(window or 0)
    operands = [pages, lengths, positions, window_size, q, k, *([] if v is None else [v]), *arrays]
    target, first = LATENT_ATTENTION if v is None else ATTENTION, len(operands) - len(arrays)
    results = [((*q.shape[:3], value_size), jnp.float32), *((array.shape, array.dtype) for array in arrays)]
    aliases = {first + k: 1 + k for k in range(len(arrays))}
    out, *updated = cpu_call(target, operands, results, aliases=aliases, instructions=instructions)
    return out, jax.tree.unflatten(tree, updated)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def attention_of(
    plain: AttentionForm, value_size: int, window: int | None, inputs: AttentionInputs
) -> tuple[Vectors, Caches]:
    """Return `decode_attention_cpu` with the plain form's derivatives."""
    return decode_attention_cpu(inputs, value_size, window)


@attention_of.defjvp
def _derivative(plain: AttentionForm, value_size: int, window: int | None, inputs: Any, tangents: Any) -> Any:
    return attention_of(plain, value_size, window, *inputs), jax.jvp(plain, inputs, tangents)[1]
