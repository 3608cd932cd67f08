"""The table of transfer functions (rules), and the rule for operations that are not in it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ir_passes.jaxpr import ir
from ir_passes.proof.values import Value
from ir_passes.proof.violations import ViolationKind
from ir_passes.proof.walk import Equation

Rule = Callable[..., list[Value]]
IDENTITIES = (
    "copy", "device_put", "layout_constraint", "name", "optimization_barrier", "pvary", "reshard",
    "sharding_constraint", "stop_gradient",
)  # fmt: skip
INDEXED = {"gather", "dynamic_slice", "dynamic_update_slice", *ir.SCATTERS}
"""Operations that keep the rows of their first operand only, not of indices and updates."""
KEEPS_ROWS = {
    "reshape", "squeeze", "expand_dims", "broadcast_in_dim", "transpose", "slice", "split", "unstack", "pad", "rev",
    "select_n", "convert_element_type", *INDEXED, *ir.WITH_BODIES, *ir.OPAQUE, *IDENTITIES,
}  # fmt: skip
"""Operations whose rules track the rows of a pool themselves; every other one changes all rows."""
MOVES = {
    *IDENTITIES, "bitcast_convert_type", "reshape", "squeeze", "expand_dims", "broadcast_in_dim", "transpose",
    "convert_element_type",
}  # fmt: skip
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


@dataclass(frozen=True)
class Parameters:
    """The parameters of a primitive that its rule knows; an equation with any other is refused.

    Attributes:
        reads: those that the rule takes into account, itself or by the shapes and dtypes of operands and results.
        ignores: those that change neither which elements a result depends on nor a fact that is claimed of it.
        accepts: those that have a rule for some of their values only, with these values.
        everything: whether every parameter is covered: an opaque operation is believed as it is declared.
    """

    reads: frozenset[str] = frozenset()
    ignores: frozenset[str] = frozenset()
    accepts: Mapping[str, tuple[Any, ...]] | None = None
    everything: bool = False

    def unknown(self, params: Mapping[str, Any]) -> str | None:
        """The first parameter that has no rule, as "name=value"; None where there is none."""
        for name, value in params.items() if not self.everything else ():
            if name in self.reads or name in self.ignores:
                continue
            if self.accepts is None or not any(value is one or value == one for one in self.accepts.get(name, ())):
                return f"{name}={value!r}"
        return None


RULES: dict[str, Rule] = {}
PARAMETERS: dict[str, Parameters] = {}


def rule(
    *names: str,
    reads: str = "",
    ignores: str = "",
    accepts: Mapping[str, tuple[Any, ...]] | None = None,
    everything: bool = False,
) -> Callable[[Rule], Rule]:
    """Register the rule of the primitives with these names, and the parameters that it knows (`Parameters`).

    Args:
        names: of primitives.
        reads, ignores: names of parameters, with spaces between them.
        accepts, everything: as in `Parameters`.
    """
    known = Parameters(frozenset(reads.split()), frozenset(ignores.split()), accepts, everything)

    def register(function: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise ValueError(f"primitive {name!r} has two rules: {RULES[name]} and {function}")
            RULES[name] = function
            PARAMETERS[name] = known
        return function

    return register


def rule_of(eqn: Any) -> Rule:
    """Return the rule of an equation; for a primitive or a parameter that has none, the one that refuses it."""
    name = eqn.primitive.name
    found = RULES.get(name)
    if found is None or PARAMETERS[name].unknown(eqn.params) is not None:
        return _unknown
    return found


def _unknown(site: Equation, *operands: Value) -> list[Value]:
    """Refuse an unknown operation: every element of its results may depend on every lane."""
    message = f"nothing is known of {site.name!r}"
    remedy = "declare it with Opaque or rowwise, or use operations that have a rule"
    if site.name in RULES:
        message = f"{site.name!r} with {PARAMETERS[site.name].unknown(site.params)} has no rule"
        remedy = "leave this parameter at its default, or put the operation in a function declared by rowwise"
    if site.eqn.effects:
        site.report(ViolationKind.UNKNOWN, f"{message}, and it has effects {site.eqn.effects}", remedy)
    owner = site.mixed(message, remedy, ViolationKind.UNKNOWN)
    return [Value(owner) for _ in site.eqn.outvars]
