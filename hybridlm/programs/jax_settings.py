"""Settings of JAX under which the steps of a model are traced, compiled and called, whatever the caller's are.

A caller may have 64-bit types on, a mesh in context, or another rule of promotion. The numbers of a model do not depend
on them: a few settings are fixed here, and every other one that changes programs is part of a program's key.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import jax

from ir_passes.compile.refused_settings import require_donation, require_programs
from ir_passes.jaxpr import jax_private

FIXED: dict[str, Any] = {
    "jax_enable_x64": False,
    "jax_numpy_dtype_promotion": "standard",
    "jax_numpy_rank_promotion": "allow",
    "jax_default_prng_impl": "threefry2x32",
    "jax_threefry_partitionable": True,
    "jax_error_checking_behavior_nan": "ignore",
    "jax_error_checking_behavior_divide": "ignore",
    "jax_error_checking_behavior_oob": "ignore",
}
"""Settings that would change types, draws of random numbers or the operations of a step."""
DEVICE = "jax_default_device"


def fixed_settings(more: dict[str, Any] | None = None, *, without_mesh: bool = False) -> AbstractContextManager[Any]:
    """Return a context with the fixed settings.

    Args:
        more: further settings, by name.
        without_mesh: whether a mesh of the caller is taken out of the context.
    """
    wanted = FIXED | (more or {})
    changed = {name: value for name, value in wanted.items() if jax_private.setting(name) != value}
    in_mesh = without_mesh and not jax.sharding.get_abstract_mesh().empty
    return _changed(changed, in_mesh) if changed or in_mesh else nullcontext()


@contextmanager
def _changed(settings: Mapping[str, Any], in_mesh: bool) -> Iterator[None]:
    with ExitStack() as stack:
        for name, value in settings.items():
            stack.enter_context(jax_private.with_setting(name, value))
        if in_mesh:
            stack.enter_context(jax_private.without_mesh())
        yield


class JaxSettings:
    """Settings of JAX for the steps of one model, in the thread that uses them.

    The default device is the one at the time of loading: the arrays of the model are on it. No mesh is in context.

    Args:
        certify: as for `Programs`; "off" needs no donation.
    """

    def __init__(self, certify: str):
        self._certify = certify
        self._device = {DEVICE: jax_private.setting(DEVICE)}

    def for_arrays(self) -> AbstractContextManager[Any]:
        """Return a context in which arrays of the model are placed."""
        return fixed_settings(self._device, without_mesh=True)

    def for_steps(self) -> AbstractContextManager[Any]:
        """Return a context in which steps of the model are traced, compiled and called.

        Raises:
            SettingError: `jax_disable_jit` is on; or `jax_debug_nans` or `jax_debug_infs`, unless `certify` is "off".
        """
        require_programs()
        if self._certify != "off":
            require_donation()
        return self.for_arrays()


class HasSettings(Protocol):
    """An object whose methods use the steps of a model."""

    @property
    def settings(self) -> JaxSettings:
        """Settings of JAX for the steps."""
        ...


Self = TypeVar("Self", bound=HasSettings)
P = ParamSpec("P")
R = TypeVar("R")


def under_settings(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
    """Decorate a method of an object with `settings`: it runs under them."""

    @wraps(method)
    def run(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.settings.for_steps():
            return method(self, *args, **kwargs)

    return run
