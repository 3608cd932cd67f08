"""Compilation of a step such that its buffer assignment is known, which the audit reads beside the HLO.

Executables of XLA:CPU give it out. The C API through which JAX calls every other backend has no field for it, so there
XLA writes it to a private folder while it compiles, by options of this one compilation, and the folder goes afterwards.
JAX leaves these options out of the key of its compilation cache, and a program that comes out of the cache is not
compiled: nothing is written. So what was written is kept beside the certificates, by the program as text, by what made
it, and is taken for a program out of the cache if that is the same to the letter. If nothing is kept, the step is
compiled anew, under a key of its own.
"""

import hashlib
import tempfile
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from ir_passes.compile.certificate import Versions
from ir_passes.compile.certificate_store import CertificateStore
from ir_passes.jaxpr import jax_private
from ir_passes.jaxpr.fingerprint import fingerprint
from ir_passes.xla_audit import hlo
from ir_passes.xla_audit.hlo import HloError

GIVEN_OUT = frozenset({"cpu"})
"""Platforms whose executables give out their buffer assignment."""
WRITTEN = frozenset({None, "cpu", "gpu", "cuda", "rocm", "tpu"})
"""Platforms of which the audit can read what XLA writes; None is one that does not say its name."""
SETTINGS_AFTERWARDS = frozenset({"tpu"})
"""Platforms on which XLA chooses settings of instructions, windows of a kernel for one, after it wrote the buffer
assignment: what it wrote is of a program that is the same but for settings."""
MAX_DUMP_BYTES = 1 << 30
FOLDER = "xla_dump_to"
ANEW = {"xla_dump_emitter_re": "compiled-anew"}
"""Option that changes the key of JAX's cache and no program, so XLA compiles anew. It filters dumps of emitters."""
NONE = "has no buffer assignment"
NOTHING = (
    "the executable gives out no buffer assignment, and XLA wrote none: either this backend does not, or the program "
    "came out of JAX's compilation cache and what XLA wrote of it then was not kept (in a folder `certificates`)"
)


@dataclass(frozen=True)
class CompiledProgram:
    """An executable with its buffer assignment, if there is one.

    Attributes:
        dump: serialized HloProto of the executable, where it does not give out its buffer assignment itself.
        absent: why there is no buffer assignment; None if there is one.
    """

    compiled: jax.stages.Compiled
    dump: bytes | None = None
    absent: str | None = None


def compile_with_assignment(
    lowered: jax.stages.Lowered,
    options: dict[str, Any] | None,
    versions: Versions,
    store: CertificateStore | None,
) -> CompiledProgram:
    """Compile a step such that its buffer assignment is known, if its platform has one.

    Args:
        lowered: the step.
        options: for XLA. A folder for its dumps among them is used and left as it is.
        versions: of what compiles it.
        store: keeps what XLA wrote, for when the program comes out of JAX's compilation cache; None keeps nothing.
    """
    platform = jax_private.platform_of(lowered)
    if platform not in GIVEN_OUT | WRITTEN:
        compiled = lowered.compile(compiler_options=options)
        return CompiledProgram(
            compiled, None, f"the audit does not know the operations that XLA has for {platform} alone"
        )
    if platform in GIVEN_OUT:
        compiled = lowered.compile(compiler_options=options)
        given = hlo.given_assignment(compiled)
        return CompiledProgram(compiled, None, None if given else "the executable gives out no buffer assignment")
    made_by = (versions.jaxlib, versions.platform, versions.device, versions.flags, jax_private.compiler_of(lowered))
    program = _compile(lowered, options or {}, made_by, store)
    # Without a place to keep it, each process would compile anew and leave one more program in the cache.
    if program.absent != NOTHING or store is None or not _cache_is_used():
        return program
    try:
        return _compile(lowered, {**(options or {}), **ANEW}, made_by, store)
    except jax.errors.JaxRuntimeError as error:  # a backend may not know the option
        return CompiledProgram(program.compiled, None, f"{program.absent}; compiled anew: {error}")


def _compile(
    lowered: jax.stages.Lowered, options: dict[str, Any], made_by: tuple[Any, ...], store: CertificateStore | None
) -> CompiledProgram:
    """Compile once, and look for the buffer assignment in XLA's dump and in the store."""
    given = options.get(FOLDER)
    with nullcontext(given) if given else tempfile.TemporaryDirectory(prefix="hybridlm-") as folder:
        compiled = lowered.compile(compiler_options={**options, FOLDER: folder, "xla_dump_hlo_as_proto": True})
        try:
            module = hlo.only_module(compiled)
        except HloError:
            return CompiledProgram(compiled)  # the audit says so
        settings = jax_private.platform_of(lowered) not in SETTINGS_AFTERWARDS
        text = jax_private.text_of_serialized(module.as_serialized_hlo_module_proto(), settings)
        key = fingerprint((hashlib.sha256(text.encode()).hexdigest(), made_by))
        dump, absent = _written(Path(folder), compiled, text, settings)
    if dump is not None:
        if store is not None:
            _keep(store, key, dump)
        return CompiledProgram(compiled, dump)
    kept = None if store is None else store.find_dump(key, MAX_DUMP_BYTES)
    if kept is not None and _fault(kept, compiled, text, settings) is None:
        return CompiledProgram(compiled, kept)
    return CompiledProgram(compiled, None, absent)


def _keep(store: CertificateStore, key: str, dump: bytes) -> None:
    try:
        store.keep_dump(key, dump)
    except OSError as error:
        warnings.warn(f"the buffer assignment of a program was not kept: {error}", stacklevel=2)


def _written(folder: Path, compiled: jax.stages.Compiled, text: str, settings: bool) -> tuple[bytes | None, str | None]:
    """Return the dump that XLA wrote of an executable, or the reason why none can be used."""
    faults: list[str] = []
    for path in sorted(folder.glob("*after_optimizations.hlo.pb")):
        size = path.stat().st_size
        if size > MAX_DUMP_BYTES:
            faults.append(f"{path.name} has {size} bytes, more than {MAX_DUMP_BYTES}")
            continue
        dump = path.read_bytes()
        fault = _fault(dump, compiled, text, settings)
        if fault == NONE:
            continue  # as of each program out of JAX's cache
        if fault is None:
            return dump, None
        faults.append(f"{path.name} {fault}")
    if faults:
        return None, f"XLA wrote no buffer assignment of this executable: {'; '.join(faults)}"
    return None, NOTHING


def _fault(dump: bytes, compiled: jax.stages.Compiled, text: str, settings: bool) -> str | None:
    """Return the reason why a dump is not of an executable, whose program is given as text; None if it is."""
    try:
        module, assignment = hlo.unpack_dump(dump)
        if not assignment:
            return NONE
        if jax_private.text_of_serialized(module, settings) != text:
            return "is of another program"
        scratch = hlo.read_buffers(assignment).temp_bytes
    except (HloError, RuntimeError) as error:  # the last from XLA, of a module that is cut off
        return f"cannot be read: {error}"
    memory: Any = compiled.memory_analysis()
    if settings and memory is not None and int(memory.temp_size_in_bytes) != scratch:
        return f"has {scratch} bytes of scratch and the executable {memory.temp_size_in_bytes}"
    return None


def _cache_is_used() -> bool:
    return bool(jax.config.values["jax_compilation_cache_dir"] and jax.config.values["jax_enable_compilation_cache"])
