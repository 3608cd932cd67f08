"""No step of any family has a 64-bit float, even when traced with x64 enabled."""

from collections.abc import Iterator
from typing import Any

import jax
import pytest
from certificate_table import GOLDEN, NAMES
from paged_shapes import paged

from hybridlm import EngineConfig
from hybridlm.engine.abstract import abstract_engine
from hybridlm.programs.shapes import Shape
from ir_passes.jaxpr import ir

SHAPES = (Shape("generate", 2, 1, 2, 2), Shape("score", 2, 8, 2, 2))
WIDE = {"float64", "complex128"}


def wide(program: ir.ClosedJaxpr) -> Iterator[str]:
    """Yield the name and source of each operation with a result of 64 bits."""
    for eqn in ir.all_eqns(program.jaxpr):
        if WIDE & {str(ir.dtype_of(result)) for result in eqn.outvars}:
            yield f"{eqn.primitive.name} at {ir.source_of(eqn)}"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_traces_of_steps_have_no_float_of_64_bits(name: str) -> None:
    engine = abstract_engine(
        GOLDEN / name / "config.json", EngineConfig(lanes=2, context=512, dtype="float32", chunk=8, kernels="off")
    )
    for shape in (paged(engine, shape) for shape in SHAPES):
        step, _ = engine.programs.step(shape)
        example_arguments: Any = engine.example_arguments(shape)
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            program = jax.make_jaxpr(step)(*example_arguments)
        assert set(wide(program)) == set()
