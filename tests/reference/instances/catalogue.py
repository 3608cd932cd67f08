"""Small programs around one operation each: random operands of every ownership, random parameters."""

import contextlib
from typing import Any

import jax
import numpy as np
from instances import control, elementwise, indexing, moves, products, randomness, reductions
from instances.elementwise import PRIMITIVES, Builder
from instances.operands import CONTRACT, Operands, draw
from jax import Array
from zoo.program import Program

THEMES = (elementwise, moves, reductions, indexing, products, randomness, control)
BUILDERS: dict[str, Builder] = {name: builder for theme in THEMES for name, builder in theme.BUILDERS.items()}
ATTEMPTS = 30
"""Draws until parameters fit their operands."""
MISFITS = (TypeError, ValueError, IndexError, AssertionError, ZeroDivisionError, NotImplementedError)


class NoInstance(RuntimeError):
    """No draw gave an operation that JAX accepts."""


def installed(name: str) -> bool:
    """Whether this JAX has a primitive; calls are always there, some by other names."""
    return name in PRIMITIVES or name in control.BUILDERS


def instance(name: str, seed: int, count: int = 1) -> Program:
    """A step with `count` instances of an operation; it gives back its lanes only, for what is seen is every variable.

    Raises:
        NoInstance: when it is traced, if no parameters fitted.
    """
    lanes = 2 + seed % 3

    def step(*given: Array) -> Any:
        operands = Operands(np.random.default_rng((seed, *name.encode())), [jax.numpy.asarray(each) for each in given])
        for _ in range(count):
            for _ in range(ATTEMPTS):
                with contextlib.suppress(*MISFITS):
                    BUILDERS[name](operands)
                    break
            else:
                raise NoInstance(f"{name}, seed {seed}: no parameters fitted in {ATTEMPTS} draws")
        return (operands.x,)

    return Program(f"{name} {seed}", step, CONTRACT, lambda rng: draw(rng, lanes))
