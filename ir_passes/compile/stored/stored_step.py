"""A compiled step as a description and bytes, and back into something that is called, without tracing anything.

XLA serializes its executable; what JAX needs to call it stands in a `Description`, which is JSON: types, places and
trees of arguments and results. Nothing is pickled. Arguments have the structure of those that the step is restored for;
of results the structure is written down, as tuples and as classes that the caller names.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from ir_passes.compile import runtime
from ir_passes.compile.calling import Calling, donated_argnums
from ir_passes.compile.certificate import Certificate
from ir_passes.compile.compiled_step import CompiledStep
from ir_passes.compile.running import Running, Successor
from ir_passes.compile.stored.result_structure import NotStorable, read_structure, write_structure
from ir_passes.compile.versions import current_versions
from ir_passes.jaxpr import ir, jax_private


@dataclass(frozen=True)
class ArrayType:
    """Type and place of one array.

    Attributes:
        spec: mesh axes that each dimension is split over; None for an array on the only device.
    """

    dtype: str
    shape: tuple[int, ...]
    weak: bool
    memory: str | None
    spec: tuple[tuple[str, ...], ...] | None


@dataclass(frozen=True)
class Description:
    """All that is needed to call an executable.

    Attributes:
        name: of the program.
        step, lanes: of the function.
        leaves: number of flattened arguments.
        kept, arguments: those that the executable reads, and their types.
        results: types of what it returns, in its order.
        tree: structure of the function's results, as JSON.
        donated, order: see `Calling`.
        committed: whether results are bound to their devices.
        successors: which result takes the bytes of which argument.
    """

    name: str
    step: str
    lanes: int
    leaves: int
    kept: tuple[int, ...]
    arguments: tuple[ArrayType, ...]
    results: tuple[ArrayType, ...]
    tree: str
    donated: tuple[int, ...]
    order: tuple[int, ...]
    committed: bool
    successors: tuple[Successor, ...]


class StoredStep(Running):
    """A step that was compiled by an earlier process; call it as the function it was made from.

    Attributes:
        certificate: made when it was compiled, of this very executable.
        compiled: XLA's.
    """

    def __init__(
        self,
        description: Description,
        certificate: Certificate,
        compiled: jax.stages.Compiled,
        calling: Calling,
        compile_anew: Callable[[], CompiledStep],
    ):
        super().__init__(calling.entry(compiled), description.successors, certificate.certify)
        self.certificate = replace(certificate, stored=True)
        self.compiled = compiled
        self._lanes, self._compile_anew = description.lanes, compile_anew

    @cached_property
    def in_full(self) -> CompiledStep:
        """This step with its jaxpr, HLO and audit, traced and compiled anew at the first access."""
        return self._compile_anew()

    def __repr__(self) -> str:
        return f"StoredStep({self.certificate.step}, lanes={self._lanes}, {self.certificate.state})"


def describe(step: CompiledStep, args: tuple[Any, ...], nodes: Sequence[type] = ()) -> tuple[Description, bytes]:
    """Return what is kept of a compiled step: how to call it, and XLA's executable.

    Args:
        step: compiled.
        args: the arguments that it was compiled for.
        nodes: classes of named tuples that its results may consist of.

    Raises:
        NotStorable: there is more to it than can be written down, or it has faults, of which each process warns.
    """
    _require_proof(step.certificate)
    parts, calling = jax_private.parts_of(step.compiled), step.calling
    if parts is None:
        raise NotStorable("it has effects, callbacks, constants or layouts of its own")
    description = Description(
        parts.name,
        calling.name,
        step.bound.lanes,
        len(step.bound.inputs),
        parts.kept,
        tuple(map(_array_type, parts.arguments, parts.argument_shardings)),
        tuple(map(_array_type, parts.results, parts.result_shardings)),
        write_structure(calling.results, args, nodes),
        calling.donated,
        calling.order,
        parts.committed,
        step.successors,
    )
    _, again, call = _assembled(description, args, nodes, parts.executable)
    # XLA has the order of the arguments and the parts of each; what JAX adds has to come back as it was.
    for what, mine, theirs in zip(parts._fields, again, parts, strict=True):
        if mine != theirs:
            raise NotStorable(f"its {what} cannot be written down")
    if call != calling:
        raise NotStorable("its calling convention cannot be written down")
    return description, runtime.save(step.compiled)


def restore(
    description: Description,
    certificate: Certificate,
    program: bytes,
    args: tuple[Any, ...],
    nodes: Sequence[type],
    compile_anew: Callable[[], CompiledStep],
) -> StoredStep:
    """Return the step that `describe` took apart, on the devices of its arguments.

    Args:
        description, certificate, program: as they were kept.
        args: arguments like those that it is called with, arrays or their types.
        nodes: as for `describe`.
        compile_anew: makes the whole step, for who wants to see more of it.

    Raises:
        NotStorable: the description does not fit the arguments or the executable, or the certificate is of another
            executable, made by other versions, or no proof.
        JaxRuntimeError: XLA does not take the executable.
    """
    devices = _devices(args)
    _require_proof(certificate)
    if not certificate.made_by(versions := current_versions(device=devices[0])):
        raise NotStorable(f"expected a certificate of {versions}, got {certificate.versions}")
    executable = runtime.load(program, devices)
    hlo = runtime.hlo_fingerprint(executable)
    if certificate.audited and certificate.fingerprints.hlo != hlo:
        raise NotStorable(f"expected the program {certificate.fingerprints.hlo} of its certificate, got {hlo}")
    found = len(executable.get_parameter_layouts()), len(executable.get_output_layouts())
    expected = len(description.arguments), len(description.results)
    if found != expected:
        raise NotStorable(f"expected an executable with {expected} parameters and results, got {found}")
    info, parts, calling = _assembled(description, args, nodes, executable)
    tree = calling.results if calling.in_order else jax.tree.structure((0,) * len(calling.order))
    return StoredStep(
        description, certificate, jax_private.compiled_of(parts, devices, info, tree), calling, compile_anew
    )


def _require_proof(certificate: Certificate) -> None:
    """Raise NotStorable for a certificate with faults, or without a demanded proof."""
    if certificate.certify != "off" and not certificate.is_proof:
        raise NotStorable(f"its certificate is no proof: {certificate!r}")


def _assembled(
    description: Description, args: tuple[Any, ...], nodes: Sequence[type], executable: Any
) -> tuple[Any, jax_private.ExecutableParts, Calling]:
    """Arguments' types, program and calling convention from a description.

    Raises:
        NotStorable: it does not fit the arguments.
    """
    leaves, structure = jax.tree.flatten((args, {}))
    results = read_structure(description.tree, args, nodes)
    kept, donated, order = description.kept, description.donated, description.order
    if len(leaves) != description.leaves or len(kept) != len(description.arguments):
        raise NotStorable(f"expected {description.leaves} arguments, {len(kept)} of them read, got {len(leaves)}")
    if sorted(order) != list(range(len(description.results))) or results.num_leaves != len(order):
        raise NotStorable(f"expected {results.num_leaves} results in some order, got {order}")
    if any(sorted(set(one)) != list(one) or not set(one) <= set(range(len(leaves))) for one in (kept, donated)):
        raise NotStorable("expected numbers of arguments in their order")
    taken = [(one.donor, one.result) for one in description.successors]
    if tuple(donor for donor, _ in taken) != donated or not {to for _, to in taken} <= set(order):
        raise NotStorable("expected a successor for each argument that is donated")
    mesh = _mesh(leaves)
    arguments = [_aval(one, mesh) for one in description.arguments]
    for number, (aval, _) in zip(kept, arguments, strict=True):
        leaf = leaves[number]
        if (tuple(leaf.shape), leaf.dtype) != (aval.shape, aval.dtype):
            raise NotStorable(f"argument {number}: expected {aval}, got {leaf.dtype}{list(leaf.shape)}")
    types = [ir.array_type(tuple(leaf.shape), str(leaf.dtype), False, None) for leaf in leaves]
    read = dict(zip(kept, (aval for aval, _ in arguments), strict=True))
    infos = [jax.stages.ArgInfo(read.get(i, aval), i in set(donated)) for i, aval in enumerate(types)]
    calling = Calling(description.step, structure, results, donated, order, donated_argnums(args, {}, set(donated)))
    given = (tuple(infos), {}) if calling.argnums is None else jax.tree.unflatten(structure, infos)
    outputs = [_aval(one, mesh) for one in description.results]
    parts = jax_private.ExecutableParts(
        executable,
        description.name,
        tuple(aval for aval, _ in arguments),
        tuple(place for _, place in arguments),
        tuple(aval for aval, _ in outputs),
        tuple(place for _, place in outputs),
        description.committed,
        kept,
    )
    return given, parts, calling


def _array_type(aval: Any, place: Any) -> ArrayType:
    spec = None
    if isinstance(place, NamedSharding):
        names = [() if one is None else (one,) if isinstance(one, str) else tuple(one) for one in place.spec]
        spec = tuple(names)
    elif not isinstance(place, SingleDeviceSharding):
        raise NotStorable(f"an array is placed as {type(place).__name__}")
    return ArrayType(str(aval.dtype), tuple(aval.shape), bool(aval.weak_type), place.memory_kind, spec)


def _aval(one: ArrayType, mesh: Any) -> tuple[Any, Any]:
    """The type and the place of an array."""
    if one.spec is None:
        if mesh is not None:
            raise NotStorable("expected arrays on one device, got a mesh")
        place: Any = SingleDeviceSharding(jax.local_devices()[0], memory_kind=one.memory)
    else:
        if mesh is None or not {name for names in one.spec for name in names} <= set(mesh.axis_names):
            raise NotStorable(f"expected a mesh with the axes of {one.spec}")
        axes = [None if not names else names[0] if len(names) == 1 else names for names in one.spec]
        place = NamedSharding(mesh, PartitionSpec(*axes), memory_kind=one.memory)
    return ir.array_type(one.shape, one.dtype, one.weak, place if one.spec is not None else None), place


def _devices(args: Any) -> list[Any]:
    mesh = _mesh(jax.tree.leaves(args))
    return jax.local_devices()[:1] if mesh is None else list(mesh.devices.flat)


def _mesh(leaves: Sequence[Any]) -> Any:
    """The mesh that arrays lie on; None for one device."""
    places = (getattr(leaf, "sharding", None) for leaf in leaves)
    return next((one.mesh for one in places if isinstance(one, NamedSharding)), None)
