"""A compiled step as a description and bytes, and its restoration without tracing.

XLA serializes its executable; `Description` has the types, placements and trees for JAX as JSON. No pickle.
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
from ir_passes.compile.exported import ExportError
from ir_passes.compile.running import Running, Successor
from ir_passes.compile.stored.result_structure import read_structure, write_structure
from ir_passes.compile.versions import current_versions
from ir_passes.jaxpr import jax_private, rewriting


@dataclass(frozen=True)
class ArrayType:
    """Type and placement of one array.

    Attributes:
        spec: mesh axes of each dimension; None on a single device.
    """

    dtype: str
    shape: tuple[int, ...]
    weak: bool
    memory: str | None
    spec: tuple[tuple[str, ...], ...] | None


@dataclass(frozen=True)
class Description:
    """What JAX needs to call an executable.

    Attributes:
        name, step: of the program and the function.
        leaves: number of flattened arguments.
        kept, arguments: numbers and types of the arguments that the program reads.
        tree: result structure, as JSON.
        donated, order: as for `Calling`.
        committed: results are bound to their devices.
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
    """A step from an earlier process; call it like its function."""

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
        """The step with jaxpr, HLO and audit, compiled again on first access."""
        return self._compile_anew()

    def __repr__(self) -> str:
        return f"StoredStep({self.certificate.step}, lanes={self._lanes}, {self.certificate.state})"


def describe(step: CompiledStep, args: tuple[Any, ...], nodes: Sequence[type] = ()) -> tuple[Description, bytes]:
    """Return the description and the executable of a step.

    Args:
        nodes: named tuple classes of its results.

    Raises:
        ExportError: parts that cannot be described, or a certificate with faults: every process must warn of them.
    """
    _require_proof(step.certificate)
    parts, calling = jax_private.parts_of(step.compiled), step.calling
    if parts is None:
        raise ExportError("expected a plain program, got effects, callbacks, constants or custom layouts")
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
    _, parts_again, call = _assembled(description, args, nodes, parts.executable)
    # XLA keeps the order and shards of arguments; JAX's additions must be restored unchanged.
    for field, stored_part, part in zip(parts._fields, parts_again, parts, strict=True):
        if stored_part != part:
            raise ExportError(f"its {field} cannot be written down")
    if call != calling:
        raise ExportError("its calling convention cannot be written down")
    return description, runtime.save(step.compiled)


def restore(
    description: Description,
    certificate: Certificate,
    program: bytes,
    args: tuple[Any, ...],
    nodes: Sequence[type],
    compile_anew: Callable[[], CompiledStep],
) -> StoredStep:
    """Rebuild a described step on the devices of its arguments.

    Args:
        args: arrays or types, as in later calls.
        compile_anew: compiles the step with jaxpr, HLO and audit.

    Raises:
        ExportError: the description does not fit, or the certificate is no proof or of another executable or versions.
        JaxRuntimeError: XLA rejects the executable.
    """
    devices = _devices(args)
    _require_proof(certificate)
    if not certificate.made_by(versions := current_versions(device=devices[0])):
        raise ExportError(f"expected a certificate of {versions}, got {certificate.versions}")
    executable = runtime.load(program, devices)
    hlo = runtime.hlo_fingerprint(executable)
    if certificate.audited and certificate.fingerprints.hlo != hlo:
        raise ExportError(f"expected the program {certificate.fingerprints.hlo} of its certificate, got {hlo}")
    counts = len(executable.get_parameter_layouts()), len(executable.get_output_layouts())
    expected = len(description.arguments), len(description.results)
    if counts != expected:
        raise ExportError(f"expected an executable with {expected} parameters and results, got {counts}")
    info, parts, calling = _assembled(description, args, nodes, executable)
    tree = calling.results if calling.in_order else jax.tree.structure((0,) * len(calling.order))
    return StoredStep(
        description, certificate, jax_private.compiled_of(parts, devices, info, tree), calling, compile_anew
    )


def _require_proof(certificate: Certificate) -> None:
    if certificate.certify != "off" and not certificate.is_proof:
        raise ExportError(f"its certificate is no proof: {certificate!r}")


def _assembled(
    description: Description, args: tuple[Any, ...], nodes: Sequence[type], executable: Any
) -> tuple[Any, jax_private.ExecutableParts, Calling]:
    """Return the parts of a restored step; raises ExportError."""
    leaves, structure = jax.tree.flatten((args, {}))
    results = read_structure(description.tree, args, nodes)
    read_arguments, donated, order = description.kept, description.donated, description.order
    if len(leaves) != description.leaves or len(read_arguments) != len(description.arguments):
        raise ExportError(
            f"expected {description.leaves} arguments, {len(read_arguments)} of them read, got {len(leaves)}"
        )
    if sorted(order) != list(range(len(description.results))) or results.num_leaves != len(order):
        raise ExportError(f"expected {results.num_leaves} results in some order, got {order}")
    if any(
        sorted(set(numbers)) != list(numbers) or not set(numbers) <= set(range(len(leaves)))
        for numbers in (read_arguments, donated)
    ):
        raise ExportError("expected numbers of arguments in their order")
    pairs = [(successor.donor, successor.result) for successor in description.successors]
    if tuple(donor for donor, _ in pairs) != donated or not {to for _, to in pairs} <= set(order):
        raise ExportError("expected a successor for each argument that is donated")
    mesh = _mesh(leaves)
    arguments = [_aval(array_type, mesh) for array_type in description.arguments]
    for number, (aval, _) in zip(read_arguments, arguments, strict=True):
        leaf = leaves[number]
        if (tuple(leaf.shape), leaf.dtype) != (aval.shape, aval.dtype):
            raise ExportError(f"argument {number}: expected {aval}, got {leaf.dtype}{list(leaf.shape)}")
    types = [rewriting.array_type(tuple(leaf.shape), str(leaf.dtype), False, None) for leaf in leaves]
    read = dict(zip(read_arguments, (aval for aval, _ in arguments), strict=True))
    infos = [jax.stages.ArgInfo(read.get(i, aval), i in set(donated)) for i, aval in enumerate(types)]
    calling = Calling(description.step, structure, results, donated, order, donated_argnums(args, {}, set(donated)))
    args_info = (tuple(infos), {}) if calling.argnums is None else jax.tree.unflatten(structure, infos)
    outputs = [_aval(array_type, mesh) for array_type in description.results]
    parts = jax_private.ExecutableParts(
        executable,
        description.name,
        tuple(aval for aval, _ in arguments),
        tuple(place for _, place in arguments),
        tuple(aval for aval, _ in outputs),
        tuple(place for _, place in outputs),
        description.committed,
        read_arguments,
    )
    return args_info, parts, calling


def _array_type(aval: Any, place: Any) -> ArrayType:
    spec = None
    if isinstance(place, NamedSharding):
        names = [() if axes is None else (axes,) if isinstance(axes, str) else tuple(axes) for axes in place.spec]
        spec = tuple(names)
    elif not isinstance(place, SingleDeviceSharding):
        raise ExportError(f"an array is placed as {type(place).__name__}")
    return ArrayType(str(aval.dtype), tuple(aval.shape), bool(aval.weak_type), place.memory_kind, spec)


def _aval(array: ArrayType, mesh: Any) -> tuple[Any, Any]:
    if array.spec is None:
        if mesh is not None:
            raise ExportError("expected arrays on one device, got a mesh")
        place: Any = SingleDeviceSharding(jax.local_devices()[0], memory_kind=array.memory)
    else:
        if mesh is None or not {name for names in array.spec for name in names} <= set(mesh.axis_names):
            raise ExportError(f"expected a mesh with the axes of {array.spec}")
        axes = [None if not names else names[0] if len(names) == 1 else names for names in array.spec]
        place = NamedSharding(mesh, PartitionSpec(*axes), memory_kind=array.memory)
    return rewriting.array_type(array.shape, array.dtype, array.weak, place if array.spec is not None else None), place


def _devices(args: Any) -> list[Any]:
    mesh = _mesh(jax.tree.leaves(args))
    return jax.local_devices()[:1] if mesh is None else list(mesh.devices.flat)


def _mesh(leaves: Sequence[Any]) -> Any:
    places = (getattr(leaf, "sharding", None) for leaf in leaves)
    return next((place.mesh for place in places if isinstance(place, NamedSharding)), None)
