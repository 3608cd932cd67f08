"""No step of any family has a 64-bit float, even when traced with x64 enabled."""

from typing import Any

import jax
import pytest
from certificate_table import NAMES
from planned_engines import planned_engine
from traced_operations import traced_operations

WIDE = {"float64", "complex128"}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_traces_of_steps_have_no_float_of_64_bits(name: str) -> None:
    engine = planned_engine(name, lanes=2, context=512, dtype="float32", chunk=8, kernels="off")
    for shape in (engine.shape("generate", 2, 1, top=2), engine.shape("score", 2, 8, top=2)):
        step, _ = engine.programs.step(shape)
        example_arguments: Any = engine.example_arguments(shape)
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            operations = traced_operations(step, *example_arguments)
        assert operations and not [item for item in operations if WIDE & {*item.outputs}]
