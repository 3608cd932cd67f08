"""JAX settings for tracing, compiling and calling the steps of a model.

A caller's 64-bit types, mesh or promotion rule change no results.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import jax

from ir_passes.jaxpr import jax_private
from ir_passes.jaxpr.refused import require_donation, require_programs

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
"""Settings that would change dtypes, random numbers or operations."""
DEVICE = "jax_default_device"


def fixed_settings(settings: Mapping[str, Any] = FIXED, *, without_mesh: bool = False) -> AbstractContextManager[Any]:
    changes = {name: value for name, value in settings.items() if jax_private.setting(name) != value}
    leaves_mesh = without_mesh and not jax.sharding.get_abstract_mesh().empty
    return _with_changes(changes, leaves_mesh) if changes or leaves_mesh else nullcontext()


@contextmanager
def _with_changes(settings: Mapping[str, Any], leaves_mesh: bool) -> Iterator[None]:
    with ExitStack() as stack:
        for name, value in settings.items():
            stack.enter_context(jax_private.with_setting(name, value))
        if leaves_mesh:
            stack.enter_context(jax_private.without_mesh())
        yield


class JaxSettings:
    """JAX settings for one model's steps, in the calling thread.

    The default device is the one at loading, where the model's arrays are. No mesh is in context.

    Args:
        donates: steps must write pools in place.

    Attributes:
        accepted: settings of threads that `for_steps` leaves unchanged.
    """

    def __init__(self, donates: bool):
        self._donates = donates
        self.accepted = set[Any]()
        self._fixed = FIXED | {DEVICE: jax_private.setting(DEVICE)}

    def for_arrays(self) -> AbstractContextManager[Any]:
        return fixed_settings(self._fixed, without_mesh=True)

    def for_steps(self) -> AbstractContextManager[Any]:
        """Return a context with the settings of this model's steps.

        Raises:
            SettingError: a setting of the thread prevents compilation or donation.
        """
        require_programs()
        if self._donates:
            require_donation()
        context = fixed_settings(self._fixed, without_mesh=True)
        if isinstance(context, nullcontext):
            self.accepted.add(jax_private.program_settings())
        return context


P = ParamSpec("P")
R = TypeVar("R")


def under_settings(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    @wraps(method)
    def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if jax_private.program_settings() in self.settings.accepted:
            return method(self, *args, **kwargs)
        with self.settings.for_steps():
            return method(self, *args, **kwargs)

    return run
