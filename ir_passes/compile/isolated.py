"""Decorator `isolated`: the first call with new argument types proves and compiles a step."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from operator import attrgetter
from typing import Any

import jax
from jax.api_util import shaped_abstractify

from ir_passes.compile.certificate import Certificate
from ir_passes.compile.compiled_step import CompiledStep
from ir_passes.compile.proving import Certify, require_certify
from ir_passes.compile.stages import LoweredStep, TracedStep, trace_step
from ir_passes.contract.contract import LaneContract
from ir_passes.jaxpr import ir, jax_private
from ir_passes.jaxpr.refused import check_hashable, require_threads
from ir_passes.jaxpr.tracing import FunctionSignature, name_of, with_static
from ir_passes.rewrites.graph import Pass
from ir_passes.rewrites.pipeline import DEFAULT_PASSES

_AVAL = attrgetter("aval")
_Entry = tuple[tuple[Any, ...], Any, Any, CompiledStep]
"""Argument types, settings, placements, and the step for them; the key has tree and static values."""


def isolated(
    contract: LaneContract,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    passes: tuple[Pass, ...] = DEFAULT_PASSES,
    certify: Certify = "error",
    certificates: str | os.PathLike[str] | None = None,
    may_copy: Sequence[str] = (),
    temp_ratio: float = 1.5,
    axes: Sequence[str] = (),
    compiler_options: dict[str, Any] | None = None,
) -> "Callable[[Callable[..., Any]], IsolatedStep]":
    """Decorate a step: the first call with new argument types proves and compiles it.

    Use it like `jax.jit`: `@isolated(contract)`. Pools with successors are donated. See `compile_step` for all
    settings.

    Args:
        static_argnums: as for `compile_step`; repeat the static arguments of a jitted function.

    Raises:
        TypeError: `contract` is no contract, as under `@isolated` without parentheses.
        ValueError: unknown `certify`.
    """
    if not isinstance(contract, LaneContract):
        raise TypeError(f"contract: expected @isolated(LaneContract(...)), got {contract!r}")
    require_certify(certify)
    prove = {"passes": passes, "certify": certify, "certificates": certificates}
    compile = {"may_copy": may_copy, "temp_ratio": temp_ratio, "axes": axes, "compiler_options": compiler_options}

    def decorate(fn: Callable[..., Any]) -> IsolatedStep:
        return IsolatedStep(fn, contract, prove, compile, FunctionSignature.of(fn, static_argnums, static_argnames))

    return decorate


class IsolatedStep:
    """A step that compiles itself, from any thread; see `isolated`.

    It keeps one compiled step per tree, shape, dtype and placement of arguments, static value and JAX setting.
    """

    __wrapped__: Callable[..., Any]

    def __init__(
        self,
        fn: Callable[..., Any],
        contract: LaneContract,
        prove: dict[str, Any],
        compile: dict[str, Any],
        parameters: FunctionSignature,
    ):
        update_wrapper(self, fn, updated=())  # a function's attributes (`lower` of `jax.pmap`) would replace methods
        self.__name__ = name_of(fn)
        self._fn, self._contract, self._parameters = fn, contract, parameters
        self._prove, self._compile = prove, compile  # settings of `compile_step`, by the stage that takes them
        self._static = bool(parameters.numbers or parameters.names)
        self._entries: dict[Any, tuple[_Entry, ...]] = {}
        self._made: list[CompiledStep] = []
        self._lock = threading.RLock()
        self._dispatch = self._dispatcher()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step; pools with successors are consumed.

        Raises:
            ContractError, IsolationError, AuditError, HloError: for new argument types, as `compile_step`.
            ForkedProcessError: in a process forked after JAX had started.
            TypeError: inside `jax.jit`, `vmap`, `grad` or `scan`: the step would be part of an unproved program.
            ValueError: an unhashable static argument.
        """
        require_threads("a compiled step")
        try:
            return self._dispatch(*args, **kwargs)
        except ValueError:
            check_hashable(self._parameters.split(args, kwargs)[2] if self._static else ())
            raise

    def _dispatcher(self) -> Callable[..., Any]:
        """Return JAX's look-up of compiled programs, with `_called` as fallback."""

        def called(*args: Any, **kwargs: Any) -> Any:
            return self._called(args, kwargs)[0]

        def missed(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
            results, step = self._called(args, kwargs)
            flat, calling = jax.tree.leaves(results), step.calling
            outputs = [flat[i] for i in calling.order]
            restore = calling.results if calling.in_order else calling.restored
            count, effects = step.in_tree.num_leaves, step.jaxpr.effects
            return results, jax_private.dispatch_data(step.compiled, count, outputs, restore, effects)

        static = sorted(self._parameters.numbers), sorted(self._parameters.names)
        return jax_private.dispatcher(self.__name__, called, missed, *static) or called

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, CompiledStep]:
        static: Any = ()
        if self._static:
            args, kwargs, static = self._parameters.split(args, kwargs)
            check_hashable(static)
        leaves, tree = jax.tree.flatten((args, kwargs))
        try:
            avals = tuple(map(_AVAL, leaves))
        except AttributeError:  # NumPy arrays and Python numbers
            avals = tuple(getattr(leaf, "aval", None) or shaped_abstractify(leaf) for leaf in leaves)
        key, context = (tree, _kinds(static)), jax_private.program_settings()
        # Types and settings are compared, not hashed: calls repeat the same objects.
        for entry in self._entries.get(key, ()):
            if entry[0] == avals and entry[1] == context:
                break
        else:
            entry = self._entry(key, avals, context, leaves, args, kwargs, static)
        try:
            return entry[3](*args, **kwargs), entry[3]
        except (TypeError, ValueError):
            _check_concrete(self.__name__, leaves)
            if entry[2] == _places(leaves):
                raise
        step = self._entry(key, avals, context, leaves, args, kwargs, static)[3]  # for arrays on other devices
        return step(*args, **kwargs), step

    def trace(self, *args: Any, **kwargs: Any) -> TracedStep:
        return trace_step(self._fn, args, self._contract, kwargs=kwargs, parameters=self._parameters)

    def lower(self, *args: Any, **kwargs: Any) -> LoweredStep:
        """Trace, prove and lower the step with the decorator's settings."""
        return self.trace(*args, **kwargs).prove(**self._prove).lower()

    def clear_cache(self) -> None:
        with self._lock:
            self._entries, self._made, self._dispatch = {}, [], self._dispatcher()

    @property
    def certificate(self) -> Certificate:
        """Certificate of the newest compiled step; raises RuntimeError before the first."""
        if not self._made:
            raise RuntimeError(f"{self.__name__} has not been called: nothing is proved or compiled yet")
        return self._made[-1].certificate

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        return tuple(step.certificate for step in self._made)

    def _entry(
        self,
        key: Any,
        avals: tuple[Any, ...],
        context: Any,
        leaves: list[Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        static: Any,
    ) -> _Entry:
        """Compile these arguments' entry if necessary; move it to the front."""
        _check_concrete(self.__name__, leaves)
        with self._lock:
            places, entries = _places(leaves), self._entries.get(key, ())
            wanted = avals, context, places
            match = next((entry for entry in entries if entry[:3] == wanted), None)
            if match is None:
                merged_args, merged_kwargs = with_static(args, kwargs, static)
                call = "@isolated(contract, {})"
                lowered = self.lower(*merged_args, **merged_kwargs)
                match = *wanted, lowered.compile(**self._compile, call=call)
                self._made.append(match[3])
            self._entries[key] = (match, *(entry for entry in entries if entry is not match))
            return match

    def __repr__(self) -> str:
        return f"IsolatedStep({self.__name__}, {len(self.certificates)} compiled)"


def _kinds(static: Any) -> Any:
    """Add classes to static values: 1, 1.0 and True are equal but make different programs."""
    return tuple((where, type(value), value) for where, value in static)


def _places(leaves: list[Any]) -> Any:
    """Return the sharding of each committed array, None for others."""
    return tuple(
        leaf.sharding if isinstance(leaf, jax.Array) and getattr(leaf, "committed", False) else None for leaf in leaves
    )


def _check_concrete(name: str, leaves: list[Any]) -> None:
    if any(isinstance(leaf, ir.Tracer) for leaf in leaves):
        raise TypeError(
            f"{name} is isolated and was called under a transformation of JAX (jit, vmap, grad, scan): what is proved "
            f"is the program that XLA compiles, and here it would be part of another one. Call it outside; or put "
            f"{name}.__wrapped__ inside, and isolate the whole."
        )
