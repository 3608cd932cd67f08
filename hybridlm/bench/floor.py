"""The least time that a decoding step can take: what it must read and compute, over what the machine can.

A step reads every weight once, reads and writes the recurrent state of every lane once, and reads the blocks of the
key/value cache that are in use; it multiplies every weight with the row of every lane. Whichever takes longer is the
floor.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

from hybridlm.bench.limits import Limits
from hybridlm.sampling.int8_head import int8_copy_bytes
from models import KV_BLOCK, Decoder, kv_blocks


@dataclass(frozen=True)
class Traffic:
    """What one step of one token per lane cannot avoid.

    Attributes:
        weights: bytes of the weights that a step reads.
        multiplied: numbers in the matrices that every lane's row meets.
        state: bytes per lane of the state that does not grow with the context; read and written.
        kv: bytes per lane and block of the key/value caches; read.
        unread: bytes of the weights that steps of so many lanes leave, because they read a narrow copy of the head.
    """

    weights: int
    multiplied: int
    state: int
    kv: int
    unread: Mapping[int, int] = field(default_factory=dict)

    @staticmethod
    def of(
        model: Decoder, params: dict[str, jax.Array], cache_dtype: Any, with_int8_head: Iterable[int] = ()
    ) -> "Traffic":
        """Of a model, from its parameters' and its state's sizes.

        Args:
            model: whose parameters they are.
            params: by name.
            cache_dtype: dtype of convolution and key/value state.
            with_int8_head: numbers of lanes whose most likely tokens are drawn with a screen of the head.
        """
        head: jax.Array = model.head[...]
        # A row of the embedding is read for each token; the whole of it only where it is the head, too.
        used = {name: array for name, array in params.items() if model.config.tied or name != "embed_tokens"}
        kept = model.state_size(cache_dtype)
        return Traffic(
            weights=sum(array.nbytes for array in used.values()),
            multiplied=sum(array.size for array in used.values() if array.ndim > 1),
            state=kept.fixed,
            kv=kept.token * KV_BLOCK,
            unread=dict.fromkeys(with_int8_head, head.nbytes - int8_copy_bytes(head)),
        )


def floor_seconds(traffic: Traffic, limits: Limits, lanes: int, positions: int) -> float:
    """Seconds of a step of `lanes` lanes that have `positions` positions in their caches."""
    moved = (
        traffic.weights - traffic.unread.get(lanes, 0) + lanes * (2 * traffic.state + kv_blocks(positions) * traffic.kv)
    )
    peak = max(limits.bfloat16_flops, limits.float32_flops)
    return max(moved / limits.read_bytes, 2 * traffic.multiplied * lanes / peak)
