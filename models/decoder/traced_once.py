"""One trace for layers of equal structure, called with each layer's arrays.

`jax.jit` caches traces by static arguments and array types; the static part is a module without its arrays. `ir_passes`
inlines each call, so the program is the same. A scan over stacked weights copies states or weights in every step: seven
times as slow on a CPU (2026-11-26).

Traces are shared within one forward pass only, so patched code is traced again.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from flax import nnx

_LEAVES = (jax.Array, bool, int, float)


class _Pass(threading.local):
    """The jitted function of this thread's forward pass, or None."""

    call: Callable[..., Any] | None = None


_pass = _Pass()


@contextmanager
def one_pass() -> Iterator[None]:
    """Share traces between equal modules inside the context."""
    outer = _pass.call

    def _call(*args: Any) -> Any:
        return _body(*args)

    # JAX drops the traces with the function.
    _pass.call = outer or jax.jit(_call, static_argnums=(0, 1, 2, 3))
    try:
        yield
    finally:
        _pass.call = outer


def traced_once(module: nnx.Module, method: str, *args: Any) -> Any:
    """Call `module.method(*args)`; inside a trace by a body shared with equal modules.

    It is called directly outside `one_pass`, in a `shard_map`, where `ir_passes` does not inline calls, and with
    objects as arguments, which may do more than their trace.
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
    """Whether a leaf is a tracer; only concrete arrays have a Boolean `committed`."""
    if not isinstance(leaf, jax.Array):
        return False
    try:
        return not isinstance(leaf.committed, bool)
    except (AttributeError, jax.errors.ConcretizationTypeError):
        return True


class _Fixed:
    """A leaf other than an array; 1 and True make different programs."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Fixed) and (type(self.value), self.value) == (type(other.value), other.value)

    def __hash__(self) -> int:
        return hash(self.value)


def _body(graph: Any, method: str, tree: Any, fixed: tuple[_Fixed | None, ...], arrays: tuple[jax.Array, ...]) -> Any:
    rest = iter(arrays)
    state, args = jax.tree.unflatten(tree, [next(rest) if leaf is None else leaf.value for leaf in fixed])
    return getattr(nnx.merge(graph, state), method)(*args)
