"""A mesh as programs mention it: its axes and their lengths, and along which of them a value differs."""

from typing import Any

import jax

from ir_passes.jaxpr import ir


def axes_of(eqn: ir.JaxprEqn) -> tuple[str, ...]:
    """The mesh axes that a collective runs over, or whose index an `axis_index` is."""
    return tuple(str(name) for name in _axes(eqn) if not isinstance(name, int))


def array_axes_of(eqn: ir.JaxprEqn) -> tuple[int, ...]:
    """The operand axes that a collective reduces: `jax.vmap` puts them in the place of the axis that it names."""
    return tuple(name for name in _axes(eqn) if isinstance(name, int))


def _axes(eqn: ir.JaxprEqn) -> tuple[Any, ...]:
    names = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    return tuple(names) if isinstance(names, tuple | list) else (names,)


def devices_of(mesh: Any) -> dict[str, int]:
    """Length of each axis of a mesh, the last one fastest."""
    return {str(name): int(size) for name, size in mesh.shape.items()}


def mesh_of(program: ir.ClosedJaxpr, arrays: Any) -> Any:
    """The mesh that a program runs on: of its `shard_map`, or else of the arrays it is called with; None if neither."""
    shardings = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(arrays)]
    meshes = [eqn.params["mesh"] for eqn in ir.all_eqns(program.jaxpr) if eqn.primitive.name == "shard_map"]
    meshes += [one.mesh for one in shardings if isinstance(one, jax.sharding.NamedSharding)]
    return meshes[0] if meshes else None


def device_of(arrays: Any) -> Any:
    """A device that arrays lie on, or are to lie on; None where none of them says so."""
    places = (getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(arrays))
    concrete = (one for one in places if one is not None and not isinstance(_mesh(one), jax.sharding.AbstractMesh))
    return next((min(one.device_set, key=lambda device: device.id) for one in concrete), None)


def _mesh(sharding: Any) -> Any:
    return getattr(sharding, "mesh", None)


def of_one_device(program: ir.ClosedJaxpr) -> ir.ClosedJaxpr:
    """Return the program of one device for a step that is one `shard_map` throughout; any other program as it is."""
    eqns, jaxpr = program.jaxpr.eqns, program.jaxpr
    if len(eqns) != 1 or eqns[0].primitive.name != "shard_map" or set(jaxpr.outvars) - set(eqns[0].outvars):
        return program
    return ir.closed(eqns[0].params["jaxpr"])


def result_shardings(program: ir.ClosedJaxpr) -> tuple[Any, ...]:
    """Return the sharding of each result of a `shard_map`; None for any other program."""
    made = {
        var: jax.sharding.NamedSharding(eqn.params["mesh"], spec)
        for eqn in program.jaxpr.eqns
        if eqn.primitive.name == "shard_map"
        for var, spec in zip(eqn.outvars, eqn.params["out_specs"], strict=True)
    }
    return tuple(None if isinstance(atom, ir.Literal) else made.get(atom) for atom in program.jaxpr.outvars)


def varying(atom: ir.Atom) -> frozenset[str]:
    """The mesh axes along which a value inside a `shard_map` may differ, as its type says (`check_vma=True`)."""
    return varying_axes(atom.aval)


def varying_axes(typed: Any) -> frozenset[str]:
    """Return the mesh axes along which values of a type may differ."""
    return frozenset(map(str, typed.manual_axis_type.varying))
