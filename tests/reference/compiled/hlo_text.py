"""HLO in words as XLA serializes it: programs of backends that are not there."""

from jaxlib._hlo import hlo_module_from_text

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
