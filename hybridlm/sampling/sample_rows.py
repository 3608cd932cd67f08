"""CPU kernel that samples one token per row: candidates are selected before sorting.

`sampling.sample_tokens` defines the distribution; equal keys give equal tokens, unless rounding of an exponential or
logarithm decides.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float32, Int32, UInt32

from ir_passes import Lane, rowwise
from ir_passes.jaxpr import jax_private
from models.cpu_kernels import INSTRUCTIONS
from models.ops.kernels import Kernel, combinations, cpu_call

TARGET = "hybridlm_sample_rows"


def supports(logits: Any) -> bool:
    # Otherwise random words of one token depend on the size of the vocabulary.
    return logits.dtype == jnp.float32 and jax_private.setting("jax_threefry_partitionable")


KERNEL = Kernel(TARGET, "cpu", supports)


@partial(jax.jit, static_argnames="instructions")
def sample_rows(
    logits: Float32[Array, "row vocab"],
    temperature: Float32[Array, "row"],
    top_k: Int32[Array, "row"],
    top_p: Float32[Array, "row"],
    min_p: Float32[Array, "row"],
    keys: UInt32[Array, "row 2"],
    *,
    instructions: str,
) -> Int32[Array, "row"]:
    """Return the sampled token of each row; `vocab` for a row with NaN.

    A row's token does not depend on other rows, their number, or the instruction set.

    Args:
        keys: threefry2x32 key words.
    """
    operands = logits, temperature, top_k, top_p, min_p, keys
    return cpu_call(TARGET, operands, [(temperature.shape, jnp.int32)], instructions=instructions)[0]


rowwise(sample_rows, inputs=(Lane(),) * 6, static=combinations(instructions=INSTRUCTIONS))
