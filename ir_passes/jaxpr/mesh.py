"""Meshes and mesh axes of a program."""

from typing import Any

import jax

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


def mesh_of(program: ir.ClosedJaxpr, arrays: Any) -> Any:
    """Return the mesh of a program's `shard_map`, else of its arrays, or None."""
    shardings = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(arrays)]
    meshes = [eqn.params["mesh"] for eqn in ir.all_eqns(program.jaxpr) if eqn.primitive.name == "shard_map"]
    meshes += [sharding.mesh for sharding in shardings if isinstance(sharding, jax.sharding.NamedSharding)]
    return meshes[0] if meshes else None


def device_of(arrays: Any) -> Any:
    """Return the first device of arrays or their placement, or None."""
    places = (getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(arrays))
    meshes = ((place, getattr(place, "mesh", None)) for place in places if place is not None)
    concrete = (place for place, mesh in meshes if not isinstance(mesh, jax.sharding.AbstractMesh))
    return next((min(sharding.device_set, key=lambda device: device.id) for sharding in concrete), None)


def of_one_device(program: ir.ClosedJaxpr) -> ir.ClosedJaxpr:
    """Return one device's program if the step is a single `shard_map`, else the program."""
    eqns, jaxpr = program.jaxpr.eqns, program.jaxpr
    if len(eqns) != 1 or eqns[0].primitive.name != "shard_map" or set(jaxpr.outvars) - set(eqns[0].outvars):
        return program
    return ir.closed(eqns[0].params["jaxpr"])


def result_shardings(program: ir.ClosedJaxpr) -> tuple[Any, ...]:
    """Return the sharding of each result of a `shard_map`, None for other results."""
    shardings = {
        var: jax.sharding.NamedSharding(eqn.params["mesh"], spec)
        for eqn in program.jaxpr.eqns
        if eqn.primitive.name == "shard_map"
        for var, spec in zip(eqn.outvars, eqn.params["out_specs"], strict=True)
    }
    return tuple(None if isinstance(atom, ir.Literal) else shardings.get(atom) for atom in program.jaxpr.outvars)


def varying(atom: ir.Atom) -> frozenset[str]:
    """Return the mesh axes of a value's variation, by its type (`check_vma=True`)."""
    return varying_axes(atom.aval)


def varying_axes(typed: Any) -> frozenset[str]:
    return frozenset(map(str, typed.manual_axis_type.varying))
