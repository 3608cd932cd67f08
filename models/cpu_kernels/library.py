"""The loaded library of CPU kernels, checked and registered with XLA."""

import ctypes
import hashlib
import logging
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax

from models.cpu_kernels.build import LIBRARY, why_stale

INSTRUCTIONS = ("portable", "avx2", "avx512", "avx512bf16", "neon", "neonbf16", "amx")
"""Instruction sets with kernels; each includes the earlier sets of its architecture."""
TARGETS = (
    "hybridlm_row_product",
    "hybridlm_packed_product",
    "hybridlm_packed_expert_product",
    "hybridlm_sample_rows",
    "hybridlm_decode_attention",
    "hybridlm_latent_decode_attention",
)
"""Handlers: functions of the library and targets of XLA's calls."""
POOL_TARGETS = ("hybridlm_recurrent_step", "hybridlm_recurrent_read", "hybridlm_conv_step", "hybridlm_conv_read")
"""Handlers of pools; the first operand has the lane rows (`ops.kernels.slots_operand`)."""
BY_SLOT = "_by_slot"
"""End of a second target of each of `POOL_TARGETS`, for calls with rows, declared separately."""
BUILD = "python -m models.cpu_kernels"
FASTEST = "HYBRIDLM_CPU_INSTRUCTIONS"
"""Environment variable: the fastest of `INSTRUCTIONS` for kernels, for the same bits on different processors."""

_log = logging.getLogger("hybridlm")


@dataclass(frozen=True)
class Library:
    """The loaded library, with registered handlers.

    Attributes:
        instructions: instruction sets of this processor, up to the set in `FASTEST`; the fastest is last.
        content: hash of the file.
    """

    instructions: tuple[str, ...]
    content: str

    @property
    def name(self) -> str:
        """Name for keys of compiled steps."""
        return f"{self.content} {' '.join(self.instructions)}"


@cache
def library() -> Library | None:
    """Return the library, or None with one warning in the log.

    Raises:
        ValueError: `FASTEST` names instructions that this processor does not run.
    """
    kernels, fault = _load()
    if fault is not None:
        _log.warning("kernels for CPUs: %s; products are XLA's. `%s` builds them", fault, BUILD)
    return kernels


def _load() -> tuple[Library | None, str | None]:
    """Return the library, or the reason for its absence."""
    if not LIBRARY.is_file():
        return None, "not built, because there was no C++ compiler when the package was installed"
    if others_write(LIBRARY):
        return None, f"{LIBRARY} is writable by users without write access to the sources; chmod go-w it"
    content = LIBRARY.read_bytes()
    if (stale := why_stale(content)) is not None:
        return None, f"{LIBRARY.name} {stale}"
    try:
        loaded: Any = ctypes.CDLL(str(LIBRARY))
        loaded.hybridlm_can_run.argtypes = [ctypes.c_int64]
        handlers = {name: jax.ffi.pycapsule(getattr(loaded, name)) for name in (*TARGETS, *POOL_TARGETS)}
        handlers |= {name + BY_SLOT: handlers[name] for name in POOL_TARGETS}
    except (OSError, AttributeError) as error:
        return None, f"{LIBRARY.name} cannot be loaded: {error}"
    try:
        for name, handler in handlers.items():
            jax.ffi.register_ffi_target(name, handler, platform="cpu")
    except (jax.errors.JaxRuntimeError, RuntimeError) as error:
        return None, f"{LIBRARY.name} was built with headers of another jaxlib: {error}"
    can_run = tuple(name for index, name in enumerate(INSTRUCTIONS) if loaded.hybridlm_can_run(index))
    return Library(up_to(os.environ.get(FASTEST), can_run), hashlib.sha256(content).hexdigest()), None


def others_write(library: Path) -> bool:
    """Return True if more users may write a library than this source file.

    Users with write access to the folder could replace the source, too.
    """
    source, status = Path(__file__).stat(), library.stat()
    return status.st_uid not in (source.st_uid, os.geteuid(), 0) or bool(status.st_mode & ~source.st_mode & 0o022)


def up_to(fastest: str | None, can_run: tuple[str, ...]) -> tuple[str, ...]:
    """Return the instruction sets up to `fastest`, or all for None.

    Raises:
        ValueError: unknown `fastest`.
    """
    if not fastest:
        return can_run
    if fastest not in can_run:
        expected = ", ".join(can_run)
        raise ValueError(f"{FASTEST}={fastest!r}: expected instructions that this processor runs: {expected}")
    return can_run[: can_run.index(fastest) + 1]
