"""Grouped product of MoE layers with plain or quantised experts.

The proof matches a row-wise function by its arrays, so each set of arrays has its function.
"""

from functools import partial
from typing import NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Float32, Int32, Shaped

from models.ops.expert_dot import (
    GATING_DEVICES,
    PRODUCT_DEVICES,
    ExpertIds,
    ExpertRows,
    TokenRows,
    expert_dot,
    grouped_product,
)
from models.ops.expert_rows import KERNEL as GPU_KERNEL
from models.ops.float32 import silu_gated
from models.ops.kernels import combinations
from models.ops.packed_product import EXPERTS_KERNEL as CPU_KERNEL
from models.ops.packed_product import packed_expert_product
from models.ops.quantised_codes import Codes
from models.ops.quantised_weight import QuantisedWeight
from models.sharding.devices import SINGLE_DEVICE, Devices

ExpertCodes = Shaped[Array, "expert out stored"]
ExpertScales = Float[Array, "expert out group"]


class ExpertForm(NamedTuple):
    """Static form of a product.

    Attributes:
        kind, dtype: as for `QuantisedWeight`.
        devices, gated: as for `expert_dot`.
    """

    kind: Codes
    dtype: str
    devices: Devices
    gated: bool = False


@partial(jax.jit, static_argnames="form")
def scaled_expert_dot(
    x: TokenRows, codes: ExpertCodes, scale: ExpertScales, expert: ExpertIds, form: ExpertForm
) -> ExpertRows:
    weight = QuantisedWeight(codes, scale, None, None, form.kind, form.dtype)
    return grouped_product(x, weight, expert, form.devices, form.gated)


@partial(jax.jit, static_argnames="form")
def twice_scaled_expert_dot(
    x: TokenRows,
    codes: ExpertCodes,
    scale: ExpertScales,
    whole: Float32[Array, "expert out 1"],
    expert: ExpertIds,
    form: ExpertForm,
) -> ExpertRows:
    """Return `expert_dot` of codes with scales of groups and of rows."""
    weight = QuantisedWeight(codes, scale, whole, None, form.kind, form.dtype)
    return grouped_product(x, weight, expert, form.devices, form.gated)


@partial(jax.jit, static_argnames="form")
def offset_expert_dot(
    x: TokenRows,
    codes: ExpertCodes,
    scale: ExpertScales,
    zero: Shaped[Array, "expert out group"],
    expert: ExpertIds,
    form: ExpertForm,
) -> ExpertRows:
    """Return `expert_dot` of codes with scales and zero points."""
    weight = QuantisedWeight(codes, scale, None, zero, form.kind, form.dtype)
    return grouped_product(x, weight, expert, form.devices, form.gated)


_FORMS = combinations(
    form=[
        ExpertForm(**form, gated=gated)
        for gated, devices in ((False, PRODUCT_DEVICES), (True, GATING_DEVICES))
        for form in combinations(
            devices=devices,
            dtype=("bfloat16", "float16", "float32"),
            kind=get_args(Codes),
        )
    ]
)
ROW_KERNELS = (
    (scaled_expert_dot, "lane shared shared lane", _FORMS),
    (twice_scaled_expert_dot, "lane shared shared shared lane", _FORMS),
    (offset_expert_dot, "lane shared shared shared lane", _FORMS),
)


def experts_product(
    x: Float32[Array, "row in"],
    weight: Float[Array, "expert out in"] | QuantisedWeight,
    expert: ExpertIds,
    devices: Devices = SINGLE_DEVICE,
    gated: bool = False,
) -> ExpertRows:
    """Return `y[r] = weight[expert[r]] @ x[r]`; arguments as for `expert_dot`."""
    if (expert.ndim > 1 or gated) and not GPU_KERNEL.chosen(devices, weight, gated):
        visits = jnp.repeat(x, expert.size // len(x), axis=0)
        product = experts_product(visits, weight, expert.reshape(-1), devices)
        product = silu_gated(*jnp.split(product, 2, -1)) if gated else product
        return product.reshape((*expert.shape, -1))
    if not isinstance(weight, QuantisedWeight):
        return expert_dot(x, weight, expert, devices, gated)
    if CPU_KERNEL.chosen(devices, x, weight):
        return _by_kernel(x, weight, expert)
    form = ExpertForm(weight.kind, weight.dtype, devices, gated)
    if weight.whole is not None:
        assert weight.zero is None, "codes with zero points have no second scale"
        return twice_scaled_expert_dot(x, weight.codes, weight.scale, weight.whole, expert, form)
    if weight.zero is not None:
        return offset_expert_dot(x, weight.codes, weight.scale, weight.zero, expert, form)
    return scaled_expert_dot(x, weight.codes, weight.scale, expert, form)


@jax.custom_jvp
def _by_kernel(
    x: Float32[Array, "row in"], weight: QuantisedWeight, expert: Int32[Array, " row"]
) -> Float32[Array, "row out"]:
    product = packed_expert_product(x, *weight.operands(), expert, form=weight.form())
    return jnp.where((expert < weight.shape[0])[:, None], product, 0.0)


@_by_kernel.defjvp
def _derivative(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    x, weight, expert = primals
    plain = jax.jvp(lambda x: experts_product(x, weight, expert), (x,), tangents[:1])
    return _by_kernel(x, weight, expert), plain[1]
