"""Compilation of a step with XLA's buffer assignment, for the audit.

XLA:CPU executables expose it. Elsewhere XLA dumps it to a private temporary folder: PJRT's C API has no field for it.
Programs from JAX's compilation cache dump nothing, so certified steps bypass that cache.
"""

import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from ir_passes.contract.statements import Statement
from ir_passes.jaxpr import jax_private
from ir_passes.targets.kernel_limits import kernel_limits, kernel_programs
from ir_passes.xla_audit import hlo
from ir_passes.xla_audit.audit import AuditReport
from ir_passes.xla_audit.hlo import HloError

GIVEN_OUT = frozenset({"cpu"})
"""Platforms with the buffer assignment in the executable."""
WRITTEN = frozenset({None, "cpu", "gpu", "cuda", "rocm", "tpu"})
"""Platforms with known operations and buffer assignments; None is an unnamed platform."""
SETTINGS_AFTERWARDS = frozenset({"tpu"})
"""Platforms where XLA sets e.g. kernel windows after it dumps the buffer assignment."""
MAX_DUMP_BYTES = 1 << 30
FOLDER = "xla_dump_to"


@dataclass(frozen=True)
class CompiledProgram:
    """An executable with its buffer assignment and its audit.

    Attributes:
        dump: serialized HloProto; None if the executable exposes its assignment.
        not_audited: reason for a missing assignment or audit.
        kernels: PTX of Pallas kernels.
        report: of the audit; None without one.
        faults: of the audit, for the certificate.
    """

    compiled: jax.stages.Compiled
    dump: bytes | None = None
    not_audited: str | None = None
    kernels: tuple[str, ...] = ()
    report: AuditReport | None = None
    faults: tuple[Statement, ...] = ()


def compile_with_assignment(lowered: jax.stages.Lowered, options: dict[str, Any] | None) -> CompiledProgram:
    """Compile a step with its buffer assignment; a dump folder in `options` is kept."""
    platform = jax_private.platform_of(lowered)
    if platform not in GIVEN_OUT | WRITTEN:
        compiled = lowered.compile(compiler_options=options)
        return CompiledProgram(
            compiled, None, f"the audit does not know the operations that XLA has for {platform} alone"
        )
    if platform in GIVEN_OUT:
        compiled = lowered.compile(compiler_options=options)
        assignment = hlo.given_assignment(compiled)
        return CompiledProgram(compiled, None, None if assignment else "the executable gives out no buffer assignment")
    options = options or {}
    dump_folder = options.get(FOLDER)
    with nullcontext(dump_folder) if dump_folder else tempfile.TemporaryDirectory(prefix="hybridlm-") as folder:
        with kernel_limits(lowered):
            compiled = lowered.compile(compiler_options={**options, FOLDER: folder, "xla_dump_hlo_as_proto": True})
        try:
            module = hlo.only_module(compiled)
        except HloError:
            return CompiledProgram(compiled)  # the audit reports this
        settings = platform not in SETTINGS_AFTERWARDS
        text = jax_private.text_of_serialized(module.as_serialized_hlo_module_proto(), settings)
        return CompiledProgram(
            compiled, *_written(Path(folder), compiled, text, settings), kernel_programs(Path(folder))
        )


def _written(folder: Path, compiled: jax.stages.Compiled, text: str, settings: bool) -> tuple[bytes | None, str | None]:
    """Return XLA's dump of an executable, or why every dump was rejected."""
    faults: list[str] = []
    for path in sorted(folder.glob("*after_optimizations.hlo.pb")):
        size = path.stat().st_size
        if size > MAX_DUMP_BYTES:
            faults.append(f"{path.name} has {size} bytes, more than {MAX_DUMP_BYTES}")
            continue
        dump = path.read_bytes()
        fault = _fault(dump, compiled, text, settings)
        if fault is None:
            return dump, None
        faults.append(f"{path.name} {fault}")
    if faults:
        return None, f"XLA wrote no buffer assignment of this executable: {'; '.join(faults)}"
    return None, "the executable gives out no buffer assignment, and XLA wrote none"


def _fault(dump: bytes, compiled: jax.stages.Compiled, text: str, settings: bool) -> str | None:
    """Return why a dump does not belong to an executable, or None."""
    try:
        module, assignment = hlo.unpack_dump(dump)
        if not assignment:
            return "has no buffer assignment"
        if jax_private.text_of_serialized(module, settings) != text:
            return "is of another program"
        scratch = hlo.read_buffers(assignment).temp_bytes
    except (HloError, RuntimeError) as error:  # RuntimeError: XLA cannot parse a truncated module
        return f"cannot be read: {error}"
    memory: Any = compiled.memory_analysis()
    if settings and memory is not None and int(memory.temp_size_in_bytes) != scratch:
        return f"has {scratch} bytes of scratch and the executable {memory.temp_size_in_bytes}"
    return None
