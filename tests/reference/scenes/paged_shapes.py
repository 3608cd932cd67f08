"""Shapes of an engine's steps: with the pages of its pool, and those that it has compiled."""

from dataclasses import replace

import hybridlm
from hybridlm.engine.engine import Engine
from hybridlm.programs.shapes import Shape


def paged(engine: Engine, shape: Shape) -> Shape:
    """Return a shape with the pages of the engine for its rows."""
    return replace(shape, pages=engine.pages(shape.rows), blocks=engine.blocks)


def compiled_steps(lm: hybridlm.LM) -> list[Shape]:
    """Return the shapes of the steps that a model has compiled, without programs that move states."""
    return [shape for shape in lm.engine.programs.shapes if isinstance(shape, Shape)]
