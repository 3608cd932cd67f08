"""HLO in words as XLA serializes it: programs of backends that are not there."""

from typing import Any

import jax
from jaxlib._hlo import hlo_module_from_text

from ir_passes.jaxpr.jax_private import text_without_sources

ADD = """
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
"""
"""A computation for `to_apply=add`."""


def serialized(text: str) -> bytes:
    """The HloModuleProto of a module that is written as XLA writes it."""
    return hlo_module_from_text(text).as_serialized_hlo_module_proto()


def text_of(compiled: jax.stages.Compiled) -> str:
    """Return a program's text without sources."""
    executable: Any = compiled.runtime_executable()
    return text_without_sources(executable.hlo_modules()[0])
