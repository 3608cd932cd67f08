"""A function traced again with the types that a call in a program has."""

from collections.abc import Callable
from typing import Any

import jax

from ir_passes.jaxpr import ir


def retraced(body: ir.ClosedJaxpr, function: Callable[..., Any], check_vma: bool) -> ir.ClosedJaxpr | None:
    """Return the program that a jitted function is traced to where another calls it.

    Args:
        body: of the call; its inputs say the types, and the mesh where it stands inside a `shard_map`.
        function: a jitted function of as many arrays.
        check_vma: as the `shard_map` has it.

    Returns:
        Its body; None where it is no single call.
    """
    avals = [var.aval for var in body.jaxpr.invars]
    programs: list[ir.ClosedJaxpr] = []

    def trace() -> tuple[()]:
        programs.append(jax.make_jaxpr(function)(*avals))
        return ()

    meshes = [aval.sharding.mesh for aval in avals if not aval.sharding.mesh.empty]
    manual = set(meshes[0].manual_axes) if meshes else set()
    if manual:
        # a mesh without manual axes, so that a shard_map can make them manual
        mesh = meshes[0].update_axis_types(dict.fromkeys(manual, jax.sharding.AxisType.Auto))
        context = jax.shard_map(trace, mesh=mesh, in_specs=(), out_specs=(), axis_names=manual, check_vma=check_vma)
        jax.eval_shape(context)
    else:
        trace()
    (program,) = programs
    return ir.body_of(program.eqns[0]) if len(program.eqns) == 1 else None
