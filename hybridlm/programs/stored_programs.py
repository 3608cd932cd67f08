"""Compiled steps of one model on disk, loaded ahead in threads."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple, dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding

from hybridlm.programs.shapes import AnyShape
from hybridlm.steps.generate import SampledTokens
from hybridlm.steps.score import Scored
from ir_passes import CompiledStep
from ir_passes.compile.exported import ExportError
from ir_passes.compile.stored import Entry, ExecutableStore, StoredStep, describe, restore

_log = logging.getLogger("hybridlm")

RESULTS = (SampledTokens, Scored)
"""Named tuples that steps return."""
LOADING = 2
"""Threads that load programs; XLA links a program on one."""


@dataclass(frozen=True)
class Origin:
    """Origin of a compiled step: the store, or a compilation.

    Attributes:
        seconds: "load", or compilation phases and "keep".
        reusable: later processes find it in the store.
    """

    stored: bool
    seconds: dict[str, float]
    reusable: bool

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {took:.2f}" for name, took in self.seconds.items() if took >= 0.005)
        return f"{'from the store' if self.stored else 'compiled'} in {sum(self.seconds.values()):.2f} s ({parts})"


class StoredPrograms:
    """The store as one model sees it; steps without a key are not stored."""

    def __init__(self, store: ExecutableStore, model: str):
        self._store, self._model = store, model
        self._lock = threading.Lock()
        self._ahead: dict[str, Future[tuple[StoredStep, float] | None]] = {}
        self._threads: ThreadPoolExecutor | None = None

    def load_ahead(self, key: str | None, args: tuple[Any, ...], compile_anew: Callable[[], CompiledStep]) -> None:
        with self._lock:
            if key is None or key in self._ahead:
                return
            if self._threads is None:
                self._threads = ThreadPoolExecutor(LOADING, "hybridlm-load")
            self._ahead[key] = self._threads.submit(self._load, key, args, compile_anew)

    def find(
        self, key: str | None, args: tuple[Any, ...], compile_anew: Callable[[], CompiledStep]
    ) -> tuple[StoredStep, float] | None:
        """Return a stored step and its loading seconds, or None."""
        if key is None:
            return None
        with self._lock:
            ahead = self._ahead.pop(key, None)
        return self._load(key, args, compile_anew) if ahead is None else ahead.result()

    def _load(
        self, key: str, args: tuple[Any, ...], compile_anew: Callable[[], CompiledStep]
    ) -> tuple[StoredStep, float] | None:
        if not threading.main_thread().is_alive():
            return None  # the interpreter would wait for the threads, and other processes for this one
        began = time.perf_counter()
        entry = self._store.find(key)
        if entry is None:
            return None
        try:
            step = restore(entry.description, entry.certificate, entry.program, args, RESULTS, compile_anew)
        except (ExportError, jax.errors.JaxRuntimeError, AttributeError, TypeError) as error:
            # The last two if a later JAX renames private parts.
            self._store.damaged(key, error)
            return None
        return step, time.perf_counter() - began

    def keep(self, key: str | None, shape: AnyShape, step: CompiledStep, args: tuple[Any, ...]) -> bool:
        """Store a compiled step; return whether it is stored."""
        if key is None:
            return False
        certificate = step.certificate
        seconds = sum(astuple(certificate.seconds))
        try:
            description, program = describe(step, args, RESULTS)
        except (ExportError, jax.errors.JaxRuntimeError, AttributeError, TypeError) as error:
            _log.info("%s is not kept: %s", shape, error)
            return False
        return self._store.keep(key, Entry(f"{shape}, {self._model}", seconds, description, certificate, program))


def types_of(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return types and places of arguments, so that no parameters stay alive."""

    def typed(leaf: Any) -> jax.ShapeDtypeStruct:
        sharding = getattr(leaf, "sharding", None)
        return jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=sharding if isinstance(sharding, NamedSharding) else None
        )

    return jax.tree.map(typed, args)
