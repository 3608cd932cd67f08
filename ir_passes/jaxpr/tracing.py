"""Traced functions with argument trees; static and named arguments as in `jax.jit`."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import Any

import jax

from ir_passes.jaxpr import ir
from ir_passes.jaxpr.jax_private_refs import without_refs
from ir_passes.jaxpr.placement import placement_errors
from ir_passes.jaxpr.refused import Static, check_hashable, check_traced


@dataclass(frozen=True)
class FunctionSignature:
    """Parameters of a function.

    Attributes:
        positional: non-static positional parameters, in order.
        optional: positional parameters with a default.
        numbers, names: static arguments by position and name.
    """

    positional: tuple[str, ...] = ()
    optional: frozenset[str] = frozenset()
    numbers: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        fn: Callable[..., Any],
        static_argnums: int | Sequence[int] | None = None,
        static_argnames: str | Sequence[str] | None = None,
    ) -> "FunctionSignature":
        """Return a function's signature; raises ValueError for an unknown static parameter."""
        numbers = [static_argnums] if isinstance(static_argnums, int) else list(static_argnums or ())
        names = [static_argnames] if isinstance(static_argnames, str) else list(static_argnames or ())
        if numbers or names:
            jax.jit(fn, static_argnums=numbers or None, static_argnames=names or None)
        try:
            parameters = list(inspect.signature(fn).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        by_either = inspect.Parameter.POSITIONAL_OR_KEYWORD
        ordered = [parameter for parameter in parameters if parameter.kind in (parameter.POSITIONAL_ONLY, by_either)]
        static = {number % len(ordered) if number < 0 else number for number in numbers}
        static |= {k for k, parameter in enumerate(ordered) if parameter.name in names}
        by_name = {parameter.name for k, parameter in enumerate(ordered) if k in static and parameter.kind is by_either}
        positional = [parameter for k, parameter in enumerate(ordered) if k not in static]
        optional = [parameter.name for parameter in positional if parameter.default is not parameter.empty]
        ordered_names = tuple(parameter.name for parameter in positional)
        return cls(ordered_names, frozenset(optional), frozenset(static), frozenset(by_name | set(names)))

    def split(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], Static]:
        static = [(k, args[k]) for k in sorted(self.numbers) if k < len(args)]
        static += [(name, kwargs[name]) for name in sorted(self.names) if name in kwargs]
        dynamic = tuple(arg for k, arg in enumerate(args) if k not in self.numbers)
        return dynamic, {name: arg for name, arg in kwargs.items() if name not in self.names}, tuple(static)


@dataclass(frozen=True)
class Trace:
    """A traced function.

    Attributes:
        program: over flattened arguments and results, without mutable arrays.
        args, kwargs: arrays or `jax.ShapeDtypeStruct`, without static ones.
        results: as `jax.ShapeDtypeStruct`.
    """

    name: str
    program: ir.ClosedJaxpr = field(repr=False)
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: Any
    parameters: FunctionSignature = FunctionSignature()


def trace_function(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    parameters: FunctionSignature | None = None,
) -> Trace:
    """Trace `fn(*args, **kwargs)` with arrays or `jax.ShapeDtypeStruct`, and static arguments.

    Raises:
        PlacementError: `shard_map` arguments are not placed on its mesh.
        TypeError: `args` is no tuple or list.
        ValueError: a static argument cannot be hashed.
    """
    if not isinstance(args, tuple | list):
        raise TypeError(f"args: expected a tuple of the step's arguments, before the contract; got {type(args)}")
    parameters = FunctionSignature.of(fn) if parameters is None else parameters
    dynamic, named, static = parameters.split(tuple(args), kwargs or {})
    check_hashable(static)
    run = _with_static(fn, static) if static else fn
    with placement_errors(dynamic, named, parameters.positional):
        program, results = jax.make_jaxpr(run, return_shape=True)(*dynamic, **named)
    return Trace(name_of(fn), without_refs(program), dynamic, named, results, parameters)


def trace_of(program: "ir.ClosedJaxpr | jax.stages.Traced") -> Trace:
    """Return the trace of `jax.make_jaxpr` (flat tuples) or `jax.jit(fn).trace`.

    Raises:
        TypeError: neither.
        ValueError: the program captures values of another trace.
    """
    if isinstance(program, ir.ClosedJaxpr):
        args = tuple(map(_example, program.in_avals))
        name = getattr(program.jaxpr.debug_info, "func_name", None) or "jaxpr"
        return Trace(name, without_refs(program), args, {}, tuple(map(_example, program.out_avals)))
    check_traced(program)
    args, kwargs = jax.tree.map(_example, program.in_avals)
    if len(jax.tree.leaves((args, kwargs))) != len(program.jaxpr.jaxpr.invars):
        raise ValueError(f"{program.fun_name} was traced inside another trace and holds its values; trace it outside")
    return Trace(program.fun_name, without_refs(program.jaxpr), tuple(args), dict(kwargs), program.out_info)


def name_of(fn: Any) -> str:
    return getattr(fn, "__name__", None) or type(fn).__name__


def _example(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=bool(getattr(aval, "weak_type", False)))


def with_static(args: Sequence[Any], kwargs: Mapping[str, Any], static: Static) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments with static ones at their places, as before `FunctionSignature.split`."""
    merged_args = list(args)
    for where, value in static:  # places ascend
        if isinstance(where, int):
            merged_args.insert(where, value)
    return merged_args, {**kwargs, **{where: value for where, value in static if isinstance(where, str)}}


def _with_static(fn: Callable[..., Any], static: Static) -> Callable[..., Any]:

    def run(*args: Any, **kwargs: Any) -> Any:
        merged_args, merged_kwargs = with_static(args, kwargs, static)
        return fn(*merged_args, **merged_kwargs)

    update_wrapper(run, fn, ("__name__", "__qualname__", "__doc__"), ())
    del run.__wrapped__
    return run
