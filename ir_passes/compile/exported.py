"""A compiled step in one file with its certificate: portable StableHLO or XLA's executable.

A zip archive of JSON and bytes, without pickle. StableHLO is for other compilers and later versions; it omits
`with_layout_constraint`, because JAX does not promise to keep its orders. An executable is machine code for the
versions and device of its certificate: load only trusted files.
"""

import hashlib
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from jax import export as jax_export

from ir_passes.compile import runtime
from ir_passes.compile.calling import Calling
from ir_passes.compile.certificate import Certificate
from ir_passes.compile.versions import current_versions
from ir_passes.contract.contract import BoundContract
from ir_passes.files import record
from ir_passes.files.atomic import whole_file
from ir_passes.jaxpr import ir
from ir_passes.jaxpr.bodies import map_equations
from ir_passes.jaxpr.refused import require_threads
from ir_passes.xla_audit.hlo import argument_shardings, kept_arguments

Form = Literal["stablehlo", "executable"]
FORMS: tuple[Form, ...] = ("stablehlo", "executable")
MEMBERS = ("certificate.json", "signature.json", "program")
MAX_BYTES = 4 << 30
PLATFORMS = {"gpu": "cuda"}
"""Names of platforms in JAX's export, if different."""


class ExportError(ValueError):
    """A step cannot be exported or stored, or a file has no suitable step."""


@dataclass(frozen=True)
class ExportedArray:
    """A flattened argument or result of a program; `entry` is its contract entry as text."""

    path: str
    entry: str
    dtype: str
    shape: tuple[int, ...]
    donated: bool


@dataclass(frozen=True)
class Signature:
    """Arguments and results of an exported program, in order.

    Attributes:
        form: "stablehlo" or "executable".
        devices: number; StableHLO contains the shards of each.
        kept: numbers of the arguments that the program reads.
        sha256: of the program's bytes.
        certificate: sha256 of the certificate's JSON.
    """

    form: str
    devices: int
    arguments: tuple[ExportedArray, ...]
    results: tuple[ExportedArray, ...]
    kept: tuple[int, ...]
    sha256: str
    certificate: str


@dataclass(frozen=True)
class Exported:
    """A program with its signature and certificate.

    Attributes:
        program: portable StableHLO bytecode, or XLA's serialized executable.
        text: StableHLO as text.
    """

    certificate: Certificate
    signature: Signature
    program: bytes
    text: str | None = None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file for `load_exported`, atomically."""
        contents = (self.certificate.to_json().encode(), record.to_json(self.signature).encode(), self.program)
        writing = whole_file(Path(os.path.realpath(path)))
        with writing as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in zip(MEMBERS, contents, strict=True):
                archive.writestr(name, content)

    def load(self) -> Callable[..., list[jax.Array]]:
        """Load the executable on the first device, as a function of flat arrays.

        Arrays have the order of the signature; a call consumes pools.

        Raises:
            ExportError: other versions or devices.
        """
        if self.signature.form != "executable":
            raise ExportError(f"only an executable is loaded, this is {self.signature.form}")
        local_versions, exported_versions = current_versions(None), self.certificate.versions
        for field in ("jax", "jaxlib", "platform", "device"):
            if getattr(local_versions, field) != getattr(exported_versions, field):
                raise ExportError(
                    f"the executable was made for {field} {getattr(exported_versions, field)}, here is "
                    f"{getattr(local_versions, field)}; compile the step here"
                )
        loaded = runtime.load(self.program)
        if runtime.hlo_fingerprint(loaded) != self.certificate.fingerprints.hlo:
            raise ExportError("the executable's HLO is not the one that the certificate names")
        return partial(_execute, loaded, self.signature)


def _execute(loaded: Any, signature: Signature, *leaves: Any) -> list[jax.Array]:
    require_threads("an exported step")
    expected = signature.arguments
    if len(leaves) != len(expected):
        raise TypeError(f"expected {len(expected)} arrays, got {len(leaves)}")
    if any(isinstance(leaf, ir.Tracer) for leaf in leaves):
        raise TypeError("an exported step was called under a transformation of JAX; expected a call outside")
    for leaf, argument in zip(leaves, expected, strict=True):
        shape, dtype = np.shape(leaf), str(getattr(leaf, "dtype", type(leaf).__name__))
        if (shape, dtype) != (argument.shape, argument.dtype):
            raise TypeError(f"{argument.path}: expected {argument.dtype}{argument.shape}, got {dtype}{shape}")
    results = runtime.execute(loaded, [leaves[i] for i in signature.kept])
    return [runtime.named(words, leaf.dtype) for words, leaf in zip(results, signature.results, strict=True)]


def export(
    calling: Calling,
    program: ir.ClosedJaxpr,
    compiled: jax.stages.Compiled,
    bound: BoundContract,
    certificate: Certificate,
    form: Form,
    platform: str | None = None,
) -> Exported:
    """Export a compiled step; raises ExportError for an executable over several devices.

    Args:
        platform: of StableHLO, "cpu", "gpu" or "tpu"; None for this process's.
    """
    if form not in FORMS:
        raise ExportError(f"form: expected one of {', '.join(FORMS)}, got {form!r}")
    devices = runtime.device_count(compiled)
    if devices != 1 and form == "executable":
        raise ExportError(f"an executable over {devices} devices cannot be exported; export it as stablehlo")
    text, read_arguments = None, tuple(range(len(bound.inputs)))
    if form == "executable":
        content, read_arguments = runtime.save(compiled), kept_arguments(compiled)
    else:
        places = argument_shardings(compiled) if devices != 1 else [None] * len(bound.inputs)
        types: list[Any] = [
            jax.ShapeDtypeStruct(bound_input.shape, bound_input.dtype, sharding=place)
            for bound_input, place in zip(bound.inputs, places, strict=True)
        ]
        args, kwargs = (types, {}) if calling.argnums is None else jax.tree.unflatten(calling.arguments, types)
        platforms = None if platform is None else [PLATFORMS.get(platform, platform)]
        exporting = jax_export.export(calling.jit(without_layouts(program)), platforms=platforms)
        lowered = exporting(*args, **kwargs)
        content, text = lowered.mlir_module_serialized, lowered.mlir_module()
    signature = Signature(
        form,
        devices,
        tuple(_leaf(bound_input, i in bound.successors) for i, bound_input in enumerate(bound.inputs)),
        tuple(_leaf(bound.outputs[i], False) for i in calling.order),
        read_arguments,
        hashlib.sha256(content).hexdigest(),
        hashlib.sha256(certificate.to_json().encode()).hexdigest(),
    )
    return Exported(certificate, signature, content, text)


def load_exported(path: str | os.PathLike[str]) -> Exported:
    """Load a file of `Exported.save`.

    Raises:
        ExportError: not such a file, or a changed program or certificate.
        RecordError: malformed certificate or signature.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            infos = {info.filename: info for info in archive.infolist()}
            if sorted(infos) != sorted(MEMBERS) or len(archive.infolist()) != len(MEMBERS):
                raise ExportError(f"{os.fspath(path)}: expected {', '.join(MEMBERS)}, found {', '.join(sorted(infos))}")
            max_sizes = {name: record.MAX_CHARACTERS for name in MEMBERS} | {"program": MAX_BYTES}
            for name, info in infos.items():
                if info.file_size > max_sizes[name]:
                    raise ExportError(
                        f"{os.fspath(path)}: {name} has {info.file_size} bytes, more than {max_sizes[name]}"
                    )
            certificate, signature, program = (archive.read(name) for name in MEMBERS)
    except zipfile.BadZipFile as error:
        raise ExportError(f"{os.fspath(path)}: {error}") from error
    exported = Exported(Certificate.from_json(certificate), record.from_json(Signature, signature), program)
    if hashlib.sha256(program).hexdigest() != exported.signature.sha256:
        raise ExportError(f"{os.fspath(path)}: the program is not the one that was exported: its sha256 differs")
    if hashlib.sha256(certificate).hexdigest() != exported.signature.certificate:
        raise ExportError(f"{os.fspath(path)}: the certificate is of another program: its sha256 differs")
    return exported


def _leaf(bound: Any, donated: bool) -> ExportedArray:
    return ExportedArray(bound.path, str(bound.entry), str(bound.dtype), bound.shape, donated)


def without_layouts(program: ir.ClosedJaxpr) -> ir.ClosedJaxpr:

    def change(eqn: ir.JaxprEqn) -> list[ir.JaxprEqn]:
        is_layout = eqn.primitive.name == "layout_constraint"
        return [eqn.replace(primitive=ir.primitives.copy_p, params={}) if is_layout else eqn]

    return map_equations(program, change, keep=lambda eqn: False)
