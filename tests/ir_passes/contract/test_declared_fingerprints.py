"""Functions that the engine declares have one fingerprint, however often JAX passed over them."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import pytest
from traced_programs import hashes_of_traces

import hybridlm  # noqa: F401  # declares them
from ir_passes.contract import declared

ROWS = {"x": ((3, 64), "float32"), "expert": ((3,), "int32")}
STORED: dict[str, tuple[tuple[int, ...], str]] = {
    "weight": ((64, 64), "float32"),
    "codes": ((64, 64), "int8"),
    "scale": ((64, 2), "float32"),
    "whole": ((64, 1), "float32"),
    "zero": ((64, 2), "int8"),
}


def declared_call(key: str) -> tuple[Callable[..., Any], list[jax.ShapeDtypeStruct]]:
    """Return a declared engine function on 8-bit codes, and its arguments."""
    forms: Any = declared._FUNCTIONS[key]
    form = next(form for form in forms if getattr(form.keywords.get("form"), "kind", "int8") == "int8")
    parameters = inspect.signature(form.func).parameters.items()
    names = [
        name
        for name, parameter in parameters
        if name not in form.keywords and parameter.default is inspect.Parameter.empty
    ]
    arguments = []
    for name in names:
        shape, dtype = ROWS.get(name) or STORED[name]
        experts = (4,) if "expert" in names and name in STORED else ()
        arguments.append(jax.ShapeDtypeStruct((*experts, *shape), dtype))
    return form, arguments


KERNELS = ("row_product", "packed_product", "packed_expert_product")
DECLARED = [
    pytest.param(key, id=name, marks=[pytest.mark.cpu_kernels] if name in KERNELS else [])
    for key in declared._FUNCTIONS
    if "/models/" in key
    for name in [key.split()[0]]
]


@pytest.mark.parametrize("key", DECLARED)
def test_declared_functions_of_the_engine_keep_their_fingerprint(key: str) -> None:
    function, arguments = declared_call(key)
    assert list(map(len, hashes_of_traces(function, *arguments))) == [1, 1]
