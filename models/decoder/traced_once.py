"""One trace for layers of equal structure, called with each layer's arrays.

`jax.jit` caches traces by static arguments and array types; the static part is a module without its arrays. `ir_passes`
inlines each call, so the program is the same. A scan over stacked weights copies states or weights in every step, seven
times as slow on a CPU.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
from flax import nnx

_LEAVES = (jax.Array, bool, int, float)
_PASS: ContextVar[Callable[..., Any] | None] = ContextVar("pass", default=None)
"""The jitted function of this thread's forward pass."""


@contextmanager
def one_pass() -> Iterator[None]:
    """Share traces between equal modules inside the context, for one forward pass.

    Later passes trace patched code again.
    """

    def _call(*args: Any) -> Any:
        return _body(*args)

    # JAX drops the traces with the function.
    token = _PASS.set(_PASS.get() or jax.jit(_call, static_argnums=(0, 1, 2, 3)))
    try:
        yield
    finally:
        _PASS.reset(token)


def traced_once(module: nnx.Module, method: str, *args: Any) -> Any:
    """Call `module.method(*args)`; inside a trace by a body shared with equal modules.

    Calls are direct outside `one_pass`, in a `shard_map`, where `ir_passes` does not inline calls, and with objects as
    arguments, which may do more than their trace.
    """
    graph, state = nnx.split(module)
    leaves, tree = jax.tree.flatten((state, args))
    plain = jax.sharding.get_abstract_mesh().manual_axes or not all(isinstance(leaf, _LEAVES) for leaf in leaves)
    call = _PASS.get()
    if call is None or plain or not any(map(_is_traced, leaves)):
        return getattr(module, method)(*args)
    arrays = tuple(leaf for leaf in leaves if isinstance(leaf, jax.Array))
    # With its type: 1 and True make different programs.
    fixed = tuple(None if isinstance(leaf, jax.Array) else (type(leaf), leaf) for leaf in leaves)
    return call(graph, method, tree, fixed, arrays)


def _is_traced(leaf: Any) -> bool:
    if not isinstance(leaf, jax.Array):
        return False
    try:
        return not isinstance(leaf.committed, bool)
    except (AttributeError, jax.errors.ConcretizationTypeError):
        return True


def _body(
    graph: Any, method: str, tree: Any, fixed: tuple[tuple[type, Any] | None, ...], arrays: tuple[jax.Array, ...]
) -> Any:
    rest = iter(arrays)
    state, args = jax.tree.unflatten(tree, [next(rest) if leaf is None else leaf[1] for leaf in fixed])
    return getattr(nnx.merge(graph, state), method)(*args)
