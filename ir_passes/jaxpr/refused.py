"""Refused steps: JAX settings, unhashable static arguments, and processes forked after JAX had started."""

import os
from typing import Any

import jax

from ir_passes.jaxpr import jax_private

Static = tuple[tuple[int | str, Any], ...]
"""Position or name of static arguments -> value."""


MUTABLE = (
    "expected arrays, got a mutable array (jax.new_ref) as an argument or captured value; pass its content, make the "
    "reference inside the step, and return jax.freeze(ref)"
)


class ForkedProcessError(RuntimeError):
    """JAX would compute in a process that was forked after JAX had started."""

    def __init__(self, subject: str):
        self._subject = subject
        super().__init__(
            f"{subject}: process {os.getpid()} was forked after JAX had started in its parent, whose threads are "
            "missing here: the computation would wait forever; expected a new process: use the start method spawn "
            "(multiprocessing.get_context('spawn'), DataLoader(multiprocessing_context='spawn')) and load the model "
            "there, load it in the child before JAX starts in the parent, or compute in the parent (num_workers=0, no "
            "num_proc)"
        )

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return type(self), (self._subject,)


forked = False
"""True if this process was forked after JAX had started."""


def _after_fork() -> None:
    global forked
    forked = forked or jax_private.backends_are_initialized()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def require_threads(subject: str) -> None:
    """Raise ForkedProcessError in a process without JAX's threads; `subject` begins its message."""
    if forked:
        raise ForkedProcessError(subject)


CHECKS = ("jax_debug_nans", "jax_debug_infs")


class SettingError(ValueError):
    """A setting of JAX prevents certification."""


def require_programs() -> None:
    """Raise SettingError if `jax_disable_jit` is on: JAX compiles nothing."""
    if jax_private.setting("jax_disable_jit"):
        raise SettingError(
            "jax_disable_jit is on, and JAX then runs one operation at a time, without a program to prove and compile: "
            "wrap this call in `with jax.disable_jit(False):`, or turn the setting off"
        )


def require_donation() -> None:
    """Raise SettingError if `jax_debug_nans` or `jax_debug_infs` is on: JAX donates nothing."""
    for name in CHECKS:
        if jax_private.setting(name):
            raise SettingError(
                f"{name} is on, and JAX then donates no buffers, so that no pool can be written in place: wrap this "
                f'call in `with jax.{name.removeprefix("jax_")}(False):`, or use certify="off"'
            )


def check_traced(program: Any) -> None:
    """Raise TypeError for anything except a traced function."""
    if not isinstance(program, jax.stages.Traced):
        raise TypeError(
            "expected a jaxpr (jax.make_jaxpr(fn)(*args)) or a traced function (jax.jit(fn).trace(*args)), got "
            f"{type(program).__name__}"
        )


def check_hashable(static: Static) -> None:
    for where, value in static:
        try:
            hash(value)
        except TypeError as error:
            raise ValueError(
                f"static argument {where!r}: expected a value that can be hashed, got {type(value).__name__} {value!r}"
            ) from error
