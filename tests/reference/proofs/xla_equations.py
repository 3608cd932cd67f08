"""One equation for many runs: in numpy, or run by run in XLA."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from numpy_interpreter import NotInNumpy, Observe, Value
from numpy_interpreter import apply as apply_in_numpy

from ir_passes.jaxpr import ir, rewriting


def _is_key(aval: Any) -> bool:
    return jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key)


def _implementation(aval: Any) -> str:
    return str(aval.dtype._impl.name)


def apply(eqn: ir.JaxprEqn, values: Sequence[Value], observe: Observe | None = None) -> list[Value]:
    """The results of one equation; random keys are their words, along one more axis."""
    if not any(_is_key(atom.aval) for atom in (*eqn.invars, *eqn.outvars)):
        try:
            return apply_in_numpy(eqn, values, observe)
        except NotInNumpy:
            pass

    def once(*operands: Any) -> list[Any]:
        typed = [
            jax.random.wrap_key_data(operand, impl=_implementation(atom.aval)) if _is_key(atom.aval) else operand
            for operand, atom in zip(operands, eqn.invars, strict=True)
        ]
        results = rewriting.eval_eqn(eqn, *typed)
        return [jax.random.key_data(x) if _is_key(x) else x for x in results]

    compiled = jax.jit(once)
    count = max((len(value) for value in values), default=1)
    runs = [compiled(*(value[run if len(value) > 1 else 0] for value in values)) for run in range(count)]
    return [np.stack(results) for results in zip(*jax.device_get(runs), strict=True)]
