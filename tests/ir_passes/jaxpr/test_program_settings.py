"""Keys of programs have every setting of JAX that changes a program."""

import ast
import inspect
from pathlib import Path
from typing import Any

import jax
import pytest

from ir_passes.jaxpr import jax_private


def in_keys_of_jax() -> list[str]:
    """Names of boolean settings that are part of this JAX's program keys."""
    source = Path(str(inspect.getsourcefile(type(jax.config)))).read_text(encoding="utf-8")
    result: set[Any] = set()
    for node in ast.walk(ast.parse(source)):
        settings: dict[Any, Any] = {}
        if isinstance(node, ast.Call):
            settings = {word.arg: getattr(word.value, "value", None) for word in node.keywords}
        if settings.get("include_in_jit_key") is True or settings.get("include_in_trace_context") is True:
            result.add(settings.get("name"))
    return sorted(name for name in result if isinstance(jax.config.values.get(name), bool))


OTHERS = {
    "jax_default_prng_impl": "rbg",
    "jax_optimization_level": "O1",
    "jax_debug_nans": True,
    "jax_debug_infs": True,
}


@pytest.mark.parametrize("name", [*in_keys_of_jax(), *OTHERS])
def test_every_setting_that_changes_programs_is_in_our_keys(name: str) -> None:
    program_settings = jax_private.program_settings()
    with jax_private.with_setting(name, OTHERS.get(name, not jax_private.setting(name))):
        assert jax_private.program_settings() != program_settings
    assert jax_private.program_settings() == program_settings
