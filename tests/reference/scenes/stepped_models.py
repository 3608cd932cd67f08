"""Models with random weights, and their steps over pools in any order."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from filled import filled
from flax import nnx
from shares import tiny

from hybridlm.devices.placement import Placement
from hybridlm.programs.examples import example_arguments
from hybridlm.programs.programs import Programs
from hybridlm.programs.shapes import AnyShape, EditShape, Shape
from hybridlm.requests.sequence import sampling_arrays
from hybridlm.rows.arrays import RowArrays
from hybridlm.steps.operands import Batch, StepInputs
from hybridlm.steps.structure import Rows, flatten


class SteppedModel:
    """A model with random weights and its steps, proved and audited."""

    def __init__(self, name: str, head: bool, kernels: str):
        parts = tiny(name, head)
        placement = Placement(kernels=kernels)
        rng = np.random.default_rng(0)

        def value(name: str, shape: tuple[int, ...]) -> np.ndarray:
            array = rng.uniform(0.2, 1, shape) if len(shape) == 1 else rng.normal(size=shape) / shape[-1] ** 0.5
            return array.astype(np.float32)

        self.model = filled(lambda: parts.family.build(parts.config.shard(placement.devices), nnx.Rngs(0)), value)
        self.structure, self.params = flatten(self.model)
        self.programs = Programs(self.structure, placement=placement, config=parts.config)
        self.arrays = RowArrays(self.model, jnp.float32, placement)

    def examples(self, shape: Any) -> tuple[Any, ...]:
        """Example arguments of a step."""
        config = self.model.config
        return example_arguments(
            shape, self.params, self.arrays.abstract, self.programs.placement, self.structure, config.hidden_size,
            config.vocab_size,
        )  # fmt: skip

    def shape(self, inputs: StepInputs, rows: int, pages: int, mtp_drafts: int = 0) -> Shape:
        """The shape of the step that these inputs have, over a pool of so many rows and pages."""
        return Shape.of(inputs, rows, pages, mtp_drafts=mtp_drafts)

    def edited(self, pool: Rows, slots: np.ndarray, edits: Any, pages: int) -> Rows:
        """The pool on the host after edits of the states in these rows."""
        (rows,) = self.run(EditShape(len(slots), len(pool.token), pages), pool, slots, edits)
        return rows

    def run(self, shape: AnyShape, *args: Any) -> Any:
        """Results of a step on the host, of the program that is compiled for it."""
        return jax.device_get(self.programs.compiled(shape, self.examples)(*args))


def greedy_inputs(batch: Batch, drafts: np.ndarray | None = None) -> StepInputs:
    """Inputs of a step that takes the most likely token of every lane, or verifies so many drafts of each."""
    return StepInputs(batch, drafts, *sampling_arrays([None] * len(batch.lengths)))
