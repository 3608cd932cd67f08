"""Conversions keep numbers and finite values as XLA does."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from facts.dtype_values import DTYPES, FLOATS, every, numbers, sampled
from jax import lax

from ir_passes.jaxpr import conversions

NUMBERS = (0.0, 1.0, -1.0, -np.inf)
"""Numbers that facts are about."""


def converted(source: str) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Return (dtype, values, converted) by XLA."""
    values = every(source)
    all_of = jax.jit(lambda x: [lax.convert_element_type(x, target) for target in DTYPES])
    for target, results in zip(DTYPES, jax.device_get(all_of(values)), strict=True):
        yield target, values, np.asarray(results)


@pytest.mark.parametrize("source", sampled(DTYPES, "int8", "float8_e4m3fn", "float32"))
def test_conversions(source: str) -> None:
    """The table's finite conversions are so in XLA."""
    with jax.enable_x64(True):
        for target, values, results in converted(source):
            old, new = jnp.dtype(source), jnp.dtype(target)
            if source in FLOATS and target in FLOATS and conversions.stays_finite(old, new):
                finite = np.isfinite(numbers(values))
                assert np.isfinite(numbers(results)[finite]).all(), (source, target)
            for number in NUMBERS:
                if conversions.holds(old, number) and conversions.holds(new, number):
                    assert (numbers(results[numbers(values) == number]) == number).all()


def test_conversions_that_stay_finite_are_known() -> None:
    finite = "bfloat16 float32, float16 bfloat16, float8_e4m3fn float16, int16 float16, uint64 bfloat16, float32 int8"
    for source, target in (pair.split() for pair in finite.split(", ")):
        assert conversions.stays_finite(jnp.dtype(source), jnp.dtype(target)), (source, target)
