"""The step that returns the final residual stream of every token, for what is computed from it elsewhere."""

from typing import Any

from jax import Array
from jaxtyping import Float32, Int32

from hybridlm.steps.structure import KERNEL_CALLS, STATE, Rows, Step, Structure
from ir_passes import Lane, LaneContract, Shared

HIDDEN_CONTRACT = LaneContract(
    inputs=(Shared(), STATE, Lane(), Lane(role="length"), Lane(), Shared()),
    outputs=(Lane(), STATE),
    opaque=KERNEL_CALLS,
)


def hidden_step(structure: Structure) -> Step:
    """`step(params, rows, tokens, lengths, positions, kv_blocks) -> (hidden float32 [N, T, hidden], rows)`.

    Rows of padding have no meaning.

    Args:
        structure: structure of the model.
    """

    def step(
        params: tuple[Any, ...],
        rows: Rows,
        tokens: Int32[Array, "lane token"],
        lengths: Int32[Array, "lane"],
        positions: Int32[Array, "lane"],
        kv_blocks: Int32[Array, ""],
    ) -> tuple[Float32[Array, "lane token hidden"], Rows]:
        hidden, layers = structure.rebuild(params)(tokens, lengths, positions, rows.layers, kv_blocks)
        return hidden, Rows(layers, rows.token)

    return step
