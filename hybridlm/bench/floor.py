"""Roofline floor of a decode step: memory traffic and arithmetic at the machine's limits.

A step reads every weight once, reads and writes the recurrent state of every lane once, and reads the blocks of the
KV cache that are in use; it multiplies every weight with the row of every lane. The longer of the two times is the
floor.
"""

from dataclasses import dataclass
from typing import Any

import jax

from hybridlm.bench.limits import MachineLimits
from models import KV_BLOCK, Decoder, kv_blocks


@dataclass(frozen=True)
class Traffic:
    """Memory traffic and arithmetic that a decode step cannot avoid.

    Attributes:
        weights: bytes of the weights that a step reads.
        multiplied: elements of the matrices that multiply every lane's row.
        state: bytes per lane of the state that does not grow with the context; read and written.
        kv: bytes per lane and block of the KV caches; read.
    """

    weights: int
    multiplied: int
    state: int
    kv: int

    @staticmethod
    def of(model: Decoder, params: dict[str, jax.Array], cache_dtype: Any) -> "Traffic":
        """Return the traffic of a model, from the sizes of its parameters and its state.

        Args:
            model: the model.
            params: parameters of the model by name.
            cache_dtype: dtype of convolution states and KV caches.
        """
        # A step reads one row of the embedding per token, and all of it only if it is also the head.
        used = {name: array for name, array in params.items() if model.config.tied or name != "embed_tokens"}
        size = model.state_size(cache_dtype)
        return Traffic(
            weights=sum(array.nbytes for array in used.values()),
            multiplied=sum(array.size for array in used.values() if array.ndim > 1),
            state=size.fixed,
            kv=(size.token - size.unused) * KV_BLOCK,
        )


def floor_seconds(traffic: Traffic, limits: MachineLimits, lanes: int, positions: int) -> float:
    """Return the least seconds of a decode step with `positions` positions per lane."""
    moved = traffic.weights + lanes * (2 * traffic.state + kv_blocks(positions) * traffic.kv)
    peak = max(limits.bfloat16_flops, limits.float32_flops)
    return max(moved / limits.read_bytes, 2 * traffic.multiplied * lanes / peak)
