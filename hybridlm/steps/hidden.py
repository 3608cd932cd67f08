"""The step that returns the final residual stream of every token."""

from typing import Any

from jax import Array
from jaxtyping import Float32

from hybridlm.steps.operands import StepInputs
from hybridlm.steps.structure import Rows, Step, Structure, with_layers


def hidden_step(structure: Structure) -> Step:
    """Make the step with outputs `hidden`, float32 [N, T, hidden]; padding has no meaning.

    Args:
        structure: structure of the model.
    """

    def step(
        params: tuple[Any, ...], rows: Rows, inputs: StepInputs
    ) -> tuple[Float32[Array, "lane token hidden"], Rows]:
        tokens, lengths, positions, slots, kv_blocks, pages = inputs.batch
        hidden, layers = structure.rebuild(params)(
            tokens, lengths, positions, rows.layers, kv_blocks, slots=slots, pages=pages
        )
        return hidden, with_layers(rows, layers, slots)

    return step
