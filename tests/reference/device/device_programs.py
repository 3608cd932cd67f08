"""A failed check's XLA program: optimised HLO, and device thunks."""

import tempfile
from pathlib import Path
from typing import Any

import jax
from device_records import Records

from hybridlm.engine.engine import Engine
from hybridlm.programs.programs import OPTIONS
from hybridlm.programs.shapes import Shape

WRITTEN = ("*after_optimizations.txt", "*thunk_sequence*.txt", "*.ptx")
"""Files that XLA writes of a compilation: program, thunks and kernels."""


def keep_program(
    records: Records, name: str, lowered: jax.stages.Lowered, options: dict[str, Any] | None = None
) -> None:
    """Compile a program again, and write the HLO and the thunks as evidence.

    Args:
        records: of the part.
        name: of the check.
        lowered: the program.
        options: of its compilation.
    """
    with tempfile.TemporaryDirectory(prefix="hybridlm-dump-") as folder:
        try:
            lowered.compile(compiler_options={**(options or {}), "xla_dump_to": folder, "xla_dump_hlo_as_text": True})
        except jax.errors.JaxRuntimeError as error:
            records.write_evidence("programs", f"{name}-error.txt", str(error).encode())
            records.write_evidence("programs", f"{name}-before-xla.txt", lowered.as_text().encode())
        for pattern in WRITTEN:
            for file in sorted(Path(folder).glob(pattern))[:4]:
                records.write_evidence("programs", f"{name}-{file.name[-80:]}", file.read_bytes())


def keep_step(records: Records, name: str, engine: Engine, shape: Shape) -> None:
    """Compile an engine's step again without a proof, and write its HLO and thunks."""
    step, _ = engine.programs.step(shape)
    lowered = jax.jit(step, donate_argnums=1).lower(*engine.example_arguments(shape))
    keep_program(records, name, lowered, OPTIONS.get(engine.placement.platform))
