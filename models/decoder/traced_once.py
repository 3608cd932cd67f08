"""Layers of one structure are traced once: the others call the traced body on arrays of their own.

A model of 40 layers has two or three kinds of branches. JAX keeps what `jax.jit` has traced by its static arguments and
the types of the arrays; here the static part is a module without its arrays. `ir_passes` puts the body in the place of
each call, so that what is proved and compiled is the same program. A scan over stacked weights would be traced as fast,
but copies states or weights in every step: seven times as slow on a CPU (2026-11-26).

Bodies are shared within one forward pass: code that is patched between two passes is traced anew.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from flax import nnx

_LEAVES = (jax.Array, bool, int, float)


class _Pass(threading.local):
    """The forward pass that this thread traces: what its layers call, None outside of one."""

    call: Callable[..., Any] | None = None


_pass = _Pass()


@contextmanager
def one_pass() -> Iterator[None]:
    """Let equal modules share what they are traced to, as long as the context lasts."""
    before = _pass.call

    def _call(*args: Any) -> Any:
        return _body(*args)

    # JAX forgets what it has traced together with the function.
    _pass.call = before or jax.jit(_call, static_argnums=(0, 1, 2, 3))
    try:
        yield
    finally:
        _pass.call = before


def traced_once(module: nnx.Module, method: str, *args: Any) -> Any:
    """Return `getattr(module, method)(*args)`; inside a trace as a call of a body that equal modules share.

    It is no call outside of `one_pass`; in a `shard_map`, as a step on a mesh is, where `ir_passes` leaves calls as
    they are; or where an argument holds anything but arrays and numbers: an object may do more than the trace shows.

    Args:
        module: its structure and the types of its arrays and arguments say all of what the method traces.
        method: name of the method.
        args: pytrees. A Python number is part of the structure.
    """
    graph, state = nnx.split(module)
    leaves, tree = jax.tree.flatten((state, args))
    plain = jax.sharding.get_abstract_mesh().manual_axes or not all(isinstance(leaf, _LEAVES) for leaf in leaves)
    if _pass.call is None or plain or not any(map(_is_traced, leaves)):
        return getattr(module, method)(*args)
    arrays = tuple(leaf for leaf in leaves if isinstance(leaf, jax.Array))
    fixed = tuple(None if isinstance(leaf, jax.Array) else _Fixed(leaf) for leaf in leaves)
    return _pass.call(graph, method, tree, fixed, arrays)


def _is_traced(leaf: Any) -> bool:
    """Whether a value stands for an array inside a trace; other arrays know whether they are committed to a device."""
    if not isinstance(leaf, jax.Array):
        return False
    try:
        return not isinstance(leaf.committed, bool)
    except (AttributeError, jax.errors.ConcretizationTypeError):
        return True


class _Fixed:
    """A leaf that is no array; 1 and True make different programs."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Fixed) and (type(self.value), self.value) == (type(other.value), other.value)

    def __hash__(self) -> int:
        return hash(self.value)


def _body(graph: Any, method: str, tree: Any, fixed: tuple[_Fixed | None, ...], arrays: tuple[jax.Array, ...]) -> Any:
    rest = iter(arrays)
    state, args = jax.tree.unflatten(tree, [next(rest) if one is None else one.value for one in fixed])
    return getattr(nnx.merge(graph, state), method)(*args)
