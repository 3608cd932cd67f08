"""Grouped product of MoE layers whose experts may be quantised.

A proof takes row-wise functions by their arrays, so there is one function for each set of arrays.
"""

from functools import partial
from typing import Any, get_args

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Float32, Int32, Shaped

from models.ops.expert_dot import PRODUCT_DEVICES, ExpertIds, ExpertRows, TokenRows, expert_dot, grouped_product
from models.ops.kernels import RowKernel, combinations
from models.ops.quantised_codes import Codes
from models.ops.quantised_weight import QuantisedWeight
from models.sharding.devices import SINGLE_DEVICE, Devices

_STATIC = ("kind", "dtype", "absent", "devices")
ExpertCodes = Shaped[Array, "expert out stored"]
ExpertScales = Float[Array, "expert out group"]


@partial(jax.jit, static_argnames=_STATIC)
def scaled_expert_dot(
    x: TokenRows,
    codes: ExpertCodes,
    scale: ExpertScales,
    expert: ExpertIds,
    kind: Codes,
    dtype: str,
    absent: bool,
    devices: Devices,
) -> ExpertRows:
    """Return `expert_dot` of codes with scales."""
    return grouped_product(x, QuantisedWeight(codes, scale, None, None, kind, dtype), expert, absent, devices)


@partial(jax.jit, static_argnames=_STATIC)
def twice_scaled_expert_dot(
    x: TokenRows,
    codes: ExpertCodes,
    scale: ExpertScales,
    whole: Float32[Array, "expert out 1"],
    expert: ExpertIds,
    kind: Codes,
    dtype: str,
    absent: bool,
    devices: Devices,
) -> ExpertRows:
    """Return `expert_dot` of codes with scales of groups and of rows."""
    return grouped_product(x, QuantisedWeight(codes, scale, whole, None, kind, dtype), expert, absent, devices)


@partial(jax.jit, static_argnames=_STATIC)
def offset_expert_dot(
    x: TokenRows,
    codes: ExpertCodes,
    scale: ExpertScales,
    zero: Shaped[Array, "expert out group"],
    expert: ExpertIds,
    kind: Codes,
    dtype: str,
    absent: bool,
    devices: Devices,
) -> ExpertRows:
    """Return `expert_dot` of codes with scales and zero points."""
    return grouped_product(x, QuantisedWeight(codes, scale, None, zero, kind, dtype), expert, absent, devices)


_FORMS = combinations(
    devices=PRODUCT_DEVICES, absent=(False, True), dtype=("bfloat16", "float16", "float32"), kind=get_args(Codes)
)
ROW_KERNELS = (
    RowKernel(scaled_expert_dot, "lane shared shared lane", _FORMS),
    RowKernel(twice_scaled_expert_dot, "lane shared shared shared lane", _FORMS),
    RowKernel(offset_expert_dot, "lane shared shared shared lane", _FORMS),
)


def experts_product(
    x: Float32[Array, "row in"],
    weight: Float[Array, "expert out in"] | QuantisedWeight,
    expert: Int32[Array, " row"],
    absent: bool = False,
    devices: Devices = SINGLE_DEVICE,
) -> Float32[Array, "row out"]:
    """Return `y[r] = weight[expert[r]] @ x[r]`, as `expert_dot` does, of plain or of quantised experts.

    Args:
        x, weight, expert, absent: as of `expert_dot`.
        devices: of the layer; they say for which platform the product is, and whether a kernel computes it.
    """
    if not isinstance(weight, QuantisedWeight):
        return expert_dot(x, weight, expert, absent, devices)
    if weight.takes_experts(x, devices):
        return _by_kernel(x, weight, expert, absent)
    static: Any = {"kind": weight.kind, "dtype": weight.dtype, "absent": absent, "devices": devices}
    if weight.whole is not None:
        assert weight.zero is None, "codes with zero points have no second scale"
        return twice_scaled_expert_dot(x, weight.codes, weight.scale, weight.whole, expert, **static)
    if weight.zero is not None:
        return offset_expert_dot(x, weight.codes, weight.scale, weight.zero, expert, **static)
    return scaled_expert_dot(x, weight.codes, weight.scale, expert, **static)


@partial(jax.custom_jvp, nondiff_argnums=(3,))
def _by_kernel(
    x: Float32[Array, "row in"], weight: QuantisedWeight, expert: Int32[Array, " row"], absent: bool
) -> Float32[Array, "row out"]:
    """Return the product by the kernel; its derivatives are those of the plain form."""
    if not absent:
        return weight.multiply_experts(x, expert)
    here = expert < weight.shape[0]
    return jnp.where(here[:, None], weight.multiply_experts(x, jnp.where(here, expert, 0)), 0.0)


@_by_kernel.defjvp
def _derivative(
    absent: bool, primals: tuple[Array, Any, Array], tangents: tuple[Array, Any, Any]
) -> tuple[Array, Array]:
    x, weight, expert = primals
    plain = jax.jvp(lambda x: experts_product(x, weight, expert, absent), (x,), tangents[:1])
    return _by_kernel(x, weight, expert, absent), plain[1]
