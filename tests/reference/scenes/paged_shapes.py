"""Shapes of steps with the pages of an engine's pool."""

from dataclasses import replace

from hybridlm.engine.engine import Engine
from hybridlm.programs.shapes import Shape


def paged(engine: Engine, shape: Shape) -> Shape:
    """Return a shape with the pages of the engine for its rows."""
    return replace(shape, pages=engine.pages(shape.rows), blocks=engine.blocks)
