"""Small programs around one operation each: random operands of every ownership, random parameters."""

import contextlib
from typing import Any

import jax
import numpy as np
from instances import control, elementwise, idle, indexing, meshes, moves, operands, products, randomness, reductions
from instances.elementwise import PRIMITIVES, Builder
from instances.idle import IdleOperands
from instances.operands import Operands
from jax import Array
from zoo.program import Program

THEMES = (elementwise, moves, reductions, indexing, products, randomness, control, meshes)
BUILDERS: dict[str, Builder] = {name: builder for theme in THEMES for name, builder in theme.BUILDERS.items()}
ATTEMPTS = 30
"""Draws until parameters fit their operands."""
MISFITS = (TypeError, ValueError, IndexError, AssertionError, ZeroDivisionError, NotImplementedError)


class NoInstance(RuntimeError):
    """No draw gave an operation that JAX accepts."""


def installed(name: str) -> bool:
    """Whether this JAX has a primitive; calls are always there, some by other names."""
    return name in PRIMITIVES or name in control.BUILDERS


def instance(name: str, seed: int, count: int = 1, with_idle: bool = False) -> Program:
    """Return a step that returns its lanes, with `count` instances of an operation.

    Args:
        name: of the primitive.
        seed: of all choices.
        count: operations.
        with_idle: whether lanes may be idle and operands their kept rows.

    Raises:
        NoInstance: when it is traced, if no parameters fitted.
    """
    lanes = meshes.LANES if name in meshes.BUILDERS else 2 + seed % 3
    theme = idle if with_idle else operands
    kinds = IdleOperands if with_idle else Operands

    def step(*args: Array) -> Any:
        drawn = kinds(np.random.default_rng((seed, *name.encode())), [jax.numpy.asarray(each) for each in args])
        for _ in range(count):
            for _ in range(ATTEMPTS):
                with contextlib.suppress(*MISFITS):
                    BUILDERS[name](drawn)
                    break
            else:
                raise NoInstance(f"{name}, seed {seed}: no parameters fitted in {ATTEMPTS} draws")
        return (drawn.x,)

    return Program(f"{name} {seed}", step, theme.CONTRACT, lambda rng: theme.draw(rng, lanes))
