"""Devices of arrays and programs, and the error for `shard_map` arguments outside its mesh."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from ir_passes.jaxpr import ir

_SPECS_DIFFER = re.compile(
    r"in_specs passed to shard_map: (?P<spec>.*?) does not match the specs of the input: .*? "
    r"for arg: (?P<type>\w+\[[^\]]*\])",
    re.DOTALL,
)
"""JAX's error for an argument with explicit axes: spec and argument type."""


@dataclass(frozen=True)
class Unplaced:
    """An argument outside a mesh.

    Attributes:
        name: of the parameter, or "".
        type: such as "float32[8,4]".
        spec: of `in_specs`, as "P('data', None)", or "".
    """

    path: str
    name: str
    type: str
    spec: str

    def __str__(self) -> str:
        name = f"{self.name}, " if self.name else ""
        return f"{self.path} ({name}{self.type}{f', in_specs {self.spec}' if self.spec else ''})"


class PlacementError(ValueError):
    """Arguments are not on a `shard_map`'s mesh as `in_specs` require.

    Attributes:
        arguments: split arguments, then others without a mesh.
    """

    def __init__(self, *arguments: Unplaced):
        self.arguments = arguments
        split_arguments = [argument for argument in arguments if argument.spec]
        other_arguments = [argument for argument in arguments if not argument.spec]
        first = split_arguments[0]
        text = f"shard_map splits arguments that do not lie on its mesh: {', '.join(map(str, split_arguments))}"
        if other_arguments:
            text += f"; {', '.join(map(str, other_arguments))} lie on no mesh either: place those that in_specs split"
        super().__init__(
            f"{text}; place each before the call: {first.name or 'x'} = jax.device_put({first.name or 'x'}, "
            f"jax.NamedSharding(mesh, jax.{first.spec})), with the mesh of the shard_map and its entry of in_specs"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.arguments


@contextmanager
def placement_errors(args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str]) -> Iterator[None]:
    """Raise PlacementError instead of JAX's `in_specs` error.

    JAX names only the first argument's type: all arguments of this type without a mesh come first.
    """
    try:
        yield
    except ValueError as error:
        match = _SPECS_DIFFER.search(str(error))
        if match is None:
            raise
        free = _free_arguments(args, kwargs, names).values()
        split_arguments = [replace(other, spec=_code(match["spec"])) for other in free if other.type == match["type"]]
        if not split_arguments:
            raise
        raise PlacementError(*split_arguments, *(other for other in free if other.type != match["type"])) from error


def check_donated(
    program: ir.ClosedJaxpr,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    names: Sequence[str],
    donated: Collection[int],
) -> None:
    """Raise PlacementError for donated arrays without a mesh that a `shard_map` splits.

    Each call would move such an array to the mesh, not write it in place. A `jax.ShapeDtypeStruct` may represent an
    array on the mesh.
    """
    leaves, free = jax.tree.leaves((tuple(args), dict(kwargs))), _free_arguments(args, kwargs, names)
    free = {index: argument for index, argument in free.items() if not isinstance(leaves[index], jax.ShapeDtypeStruct)}
    unplaced = []
    for eqn in program.jaxpr.eqns:
        if eqn.primitive.name != "shard_map":
            continue
        specs = dict(zip(eqn.invars, eqn.params["in_specs"], strict=True))
        for index, var in enumerate(program.jaxpr.invars):
            axes = [axis for part in specs.get(var, ()) for axis in (part if isinstance(part, tuple) else (part,))]
            if index in donated and index in free and any(eqn.params["mesh"].shape.get(axis, 1) > 1 for axis in axes):
                unplaced.append(replace(free[index], spec=_code(str(specs[var]))))
    if unplaced:
        raise PlacementError(*unplaced)


def _code(spec: str) -> str:
    return "P" + spec.removeprefix("PartitionSpec").removeprefix("P")


def _free_arguments(args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str]) -> dict[int, Unplaced]:
    free = {}
    for index, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path((tuple(args), dict(kwargs)))):
        if isinstance(getattr(leaf, "sharding", None), jax.sharding.NamedSharding) or not hasattr(leaf, "dtype"):
            continue
        key: Any = path[1]
        is_positional = hasattr(key, "idx")
        place = f"args[{key.idx}]" if is_positional else f"kwargs[{key.key!r}]"
        name = str(names[key.idx]) if is_positional and key.idx < len(names) and len(path) == 2 else ""
        dtype: Any = jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True)
        shape = ",".join(map(str, np.shape(leaf)))
        free[index] = Unplaced(place + jax.tree_util.keystr(path[2:]), name, f"{dtype.name}[{shape}]", "")
    return free


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
