"""Settings of JAX that prevent certification."""

from ir_passes.jaxpr import jax_private

CHECKS = ("jax_debug_nans", "jax_debug_infs")


class SettingError(ValueError):
    """A setting of JAX prevents certification."""

    def __init__(self, name: str, effect: str, advice: str):
        super().__init__(f"{name} is on, and {effect}: {advice}")
        self.name = name


def require_programs() -> None:
    """Raise SettingError if `jax_disable_jit` is on: JAX compiles nothing."""
    if jax_private.setting("jax_disable_jit"):
        raise SettingError(
            "jax_disable_jit",
            "JAX then runs one operation at a time, without a program to prove and compile",
            "wrap this call in `with jax.disable_jit(False):`, or turn the setting off",
        )


def require_donation() -> None:
    """Raise SettingError if `jax_debug_nans` or `jax_debug_infs` is on: JAX donates nothing."""
    for name in CHECKS:
        if jax_private.setting(name):
            raise SettingError(
                name,
                "JAX then donates no buffers, so that no pool can be written in place",
                f'wrap this call in `with jax.{name.removeprefix("jax_")}(False):`, or use certify="off"',
            )
