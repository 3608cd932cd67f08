"""Integer arithmetic without effect, as in `s + 0` or `-(-s)`."""

from ir_passes.jaxpr.dtypes import is_integer, limits
from ir_passes.proof.rules.addressing.access import constant_of
from ir_passes.proof.site import Site
from ir_passes.proof.values import Value

_SHIFTS = ("shift_left", "shift_right_arithmetic", "shift_right_logical")
_NEUTRAL = {"add": 0, "sub": 0, "xor": 0, "or": 0, "mul": 1, "div": 1, **dict.fromkeys(_SHIFTS, 0)}
"""Operation -> number that changes no other operand."""
_ORDERED = ("sub", "div", *_SHIFTS)
"""Operations with a neutral second operand only."""
_INVERSE = {"add": "sub", "sub": "add", "div": "mul"}


def unchanged(site: Site, *operands: Value) -> Value | None:
    dtype = site.eqn.outvars[0].aval.dtype
    if not is_integer(dtype):
        return None
    if len(operands) == 2:
        return _by_neutral(site, *operands) or _by_mask(site, *operands) or _undone(site, *operands)
    (x,) = operands
    if site.name == "abs":
        return x if x.range is not None and x.range[0] >= 0 else None
    return _twice(site, x) if site.name in ("neg", "not") else None


def _by_neutral(site: Site, x: Value, y: Value) -> Value | None:
    neutral = _NEUTRAL.get(site.name)
    if neutral is None:
        return None
    bounds = (neutral, neutral)
    if y.range == bounds and site.shapes[0] == site.shape:
        return x
    return y if site.name not in _ORDERED and x.range == bounds and site.shapes[1] == site.shape else None


def _by_mask(site: Site, x: Value, y: Value) -> Value | None:
    least, greatest = limits(site.eqn.outvars[0].aval.dtype)
    for k, (value, mask) in enumerate(((x, y), (y, x)) if site.name == "and" else ()):
        ones, bounds = constant_of(mask), value.range
        if ones is None or site.shapes[k] != site.shape:
            continue
        if ones == (-1 if least else greatest):
            return value
        if ones > 0 and ones & (ones + 1) == 0 and bounds is not None and 0 <= bounds[0] and bounds[1] <= ones:
            return value
    return None


def _undone(site: Site, x: Value, y: Value) -> Value | None:
    """Return the integer before an operation that an equal constant undoes."""
    by, inverse = constant_of(y), _INVERSE.get(site.name)
    eqn = None if by is None or inverse is None else site.maker(site.eqn.invars[0])
    if eqn is None or eqn.primitive.name != inverse or site.shapes[0] != site.shape:
        return None
    first, second = (site.prover.read(site.env, atom) for atom in eqn.invars)
    if constant_of(second) != by or eqn.invars[0].aval.shape != site.shape:
        return None
    # sums wrap forth and back; a product that wraps is not undone
    return first if site.name != "div" or (by and x.range is not None) else None


def _twice(site: Site, x: Value) -> Value | None:
    eqn = site.maker(site.eqn.invars[0])
    return site.prover.read(site.env, eqn.invars[0]) if eqn is not None and eqn.primitive.name == site.name else None
