"""Random kernels: a proved kernel keeps lanes apart, and equals its plain form."""

from collections.abc import Callable

import jax
import numpy as np
import pytest
from isolation_oracle import leaks
from random_kernels import aliased, random_kernel
from random_whole_kernels import random_whole_kernel
from zoo.kernels.random_blocks import random_block_kernel
from zoo.program import Program

from ir_passes import IsolationError, prove_isolation
from ir_passes.jaxpr import ir
from ir_passes.kernels import read_kernels


def proved(seed: int, draw: Callable[[int], Program]) -> bool:
    """Return whether a random kernel is proved; check that a proved kernel has no leak."""
    program = draw(seed)
    try:
        prove_isolation(program.step, program.args(), program.contract)
    except IsolationError:
        return False
    assert not leaks(program.step, program.contract, program.draw, seeds=range(2)), seed
    args = program.args(seed)
    plain = read_kernels(ir.trace(program.step, *args), keep=lambda eqn: False)
    assert not plain.unread
    if aliased(program):
        return True
    compiled = jax.jit(ir.as_function(plain.program))(*args)
    for item, other in zip(compiled, jax.jit(program.step)(*args), strict=True):
        np.testing.assert_allclose(item, other, rtol=1e-5, atol=1e-6, err_msg=str(seed))
    return True


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(100, 2100), marks=pytest.mark.long)], ids=len)
@pytest.mark.parametrize(("draw", "share"), [(random_kernel, 20), (random_whole_kernel, 50), (random_block_kernel, 20)])
def test_proved_kernels_keep_lanes_apart(draw: Callable[[int], Program], share: int, seeds: range):
    """Every tenth or so of them is right, of those of whole arrays every twentieth."""
    assert sum(proved(seed, draw) for seed in seeds) >= max(1, len(seeds) // share)
