"""Meshes and mesh axes of a program."""

from typing import Any

from ir_passes.jaxpr import ir


def axes_of(eqn: ir.JaxprEqn) -> tuple[str, ...]:
    return tuple(str(name) for name in _axes(eqn) if not isinstance(name, int))


def array_axes_of(eqn: ir.JaxprEqn) -> tuple[int, ...]:
    """Return the operand axes that a collective reduces (`jax.vmap` of named axes)."""
    return tuple(name for name in _axes(eqn) if isinstance(name, int))


def _axes(eqn: ir.JaxprEqn) -> tuple[Any, ...]:
    names = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    return tuple(names) if isinstance(names, tuple | list) else (names,)


def devices_of(mesh: Any) -> dict[str, int]:
    return {str(name): int(size) for name, size in mesh.shape.items()}


def varying_axes(typed: Any) -> frozenset[str]:
    """Return the mesh axes of a value's variation, by its type (`check_vma=True`)."""
    return frozenset(map(str, typed.manual_axis_type.varying))
