"""The table of rules, and the rule for what is not in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ir_passes import ir
from ir_passes.values import Value
from ir_passes.violations import ViolationKind

if TYPE_CHECKING:
    from ir_passes.site import Site

Rule = Callable[..., list[Value]]
IDENTITIES = (
    "copy", "device_put", "layout_constraint", "name", "optimization_barrier", "pvary", "reshard",
    "sharding_constraint", "stop_gradient",
)  # fmt: skip
KEEPS_ROWS = {
    "reshape", "squeeze", "expand_dims", "broadcast_in_dim", "transpose", "slice", "split", "unstack", "pad", "rev",
    "gather", "dynamic_slice", "scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max", "scatter-sub",
    "dynamic_update_slice", "select_n", "scan", "while", "cond", "shard_map", "convert_element_type",
    *ir.OPAQUE, *IDENTITIES, *ir.CALLS,
}  # fmt: skip
"""Operations whose rules say themselves what becomes of the rows of a pool; every other one changes them all."""
INDEXED = {
    "gather", "dynamic_slice", "scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max", "scatter-sub",
    "dynamic_update_slice",
}  # fmt: skip
"""Those of them that keep the rows of their first operand, and make others of what indexes it or is written to it."""
MOVES = {
    *IDENTITIES,
    "bitcast_convert_type",
    "reshape",
    "squeeze",
    "expand_dims",
    "broadcast_in_dim",
    "transpose",
    "convert_element_type",
}
"""Operations that move the elements of each operand about by themselves: zeros stay zeros."""
SUMS = ("psum", "psum_invariant")
ELEMENTWISE = frozenset(
    """
abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex conj
convert_element_type cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igamma_grad_a
igammac imag integer_pow is_finite le le_to lgamma log log1p log2 logistic lt lt_to max min mul mulhi ne neg nextafter
not one_minus_square or philox2x32 philox4x32 polygamma polynomial population_count pow real reduce_precision rem
round rsqrt shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square sub tan tanh threefry2x32
threefry4x32 xor zeta
""".split()
)
"""Operations whose result at a place depends on their operands at the same place alone."""
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of the primitives with these names."""

    def register(function: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise ValueError(f"primitive {name!r} has two rules: {RULES[name]} and {function}")
            RULES[name] = function
        return function

    return register


def rule_of(eqn: Any) -> Rule:
    """The rule of an equation."""
    return RULES.get(eqn.primitive.name, _unknown)


def _unknown(site: Site, *operands: Value) -> list[Value]:
    """An operation that nothing is known of: every element of its results may depend on every lane."""
    message = f"nothing is known of {site.name!r}"
    remedy = "declare it with Opaque or rowwise, or use operations that have a rule"
    if site.eqn.effects:
        site.report(ViolationKind.UNKNOWN, f"{message}, and it has effects {site.eqn.effects}", remedy)
    owner = site.mixed(message, remedy, ViolationKind.UNKNOWN)
    return [Value(owner) for _ in site.eqn.outvars]
