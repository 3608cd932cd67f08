"""Compilation of a step with its buffer assignment for the audit.

Executables of XLA:CPU expose it. The C API of other backends has no field for it, so XLA writes it to a private
temporary folder. A program from JAX's compilation cache writes nothing: certified steps are compiled without the cache.
"""

import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from ir_passes.jaxpr import jax_private
from ir_passes.targets.kernel_limits import kernel_limits, kernel_programs
from ir_passes.xla_audit import hlo
from ir_passes.xla_audit.hlo import HloError

GIVEN_OUT = frozenset({"cpu"})
"""Platforms with executables that expose their buffer assignment."""
WRITTEN = frozenset({None, "cpu", "gpu", "cuda", "rocm", "tpu"})
"""Platforms with readable buffer assignments; None has no name."""
SETTINGS_AFTERWARDS = frozenset({"tpu"})
"""Platforms where XLA chooses settings of instructions, such as kernel windows, after writing the buffer assignment."""
MAX_DUMP_BYTES = 1 << 30
FOLDER = "xla_dump_to"
NOTHING = "the executable gives out no buffer assignment, and XLA wrote none"


@dataclass(frozen=True)
class CompiledProgram:
    """An executable with its buffer assignment, if there is one.

    Attributes:
        dump: serialized HloProto, if the executable does not expose its buffer assignment.
        absent: reason without a buffer assignment.
        kernels: PTX of Pallas kernels, for their registers.
    """

    compiled: jax.stages.Compiled
    dump: bytes | None = None
    absent: str | None = None
    kernels: tuple[str, ...] = ()


def compile_with_assignment(lowered: jax.stages.Lowered, options: dict[str, Any] | None) -> CompiledProgram:
    """Compile a step; return its buffer assignment if its platform has one.

    A dump folder in `options` is kept.
    """
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
    """Return XLA's dump of an executable, or the reason to reject it."""
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
    return None, NOTHING


def _fault(dump: bytes, compiled: jax.stages.Compiled, text: str, settings: bool) -> str | None:
    """Return why a dump does not match an executable's text, or None."""
    try:
        module, assignment = hlo.unpack_dump(dump)
        if not assignment:
            return "has no buffer assignment"
        if jax_private.text_of_serialized(module, settings) != text:
            return "is of another program"
        scratch = hlo.read_buffers(assignment).temp_bytes
    except (HloError, RuntimeError) as error:  # the last from XLA, of a module that is cut off
        return f"cannot be read: {error}"
    memory: Any = compiled.memory_analysis()
    if settings and memory is not None and int(memory.temp_size_in_bytes) != scratch:
        return f"has {scratch} bytes of scratch and the executable {memory.temp_size_in_bytes}"
    return None
