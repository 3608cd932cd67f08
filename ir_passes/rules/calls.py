"""Calls whose inside is declared or is another language: row-wise functions, kernels, callbacks, custom calls."""

from ir_passes import ir
from ir_passes.contract import Lane, Opaque, Pool, Shared, SlotMap
from ir_passes.declared import RowWise, declaration_of
from ir_passes.rules.registry import rule
from ir_passes.site import Site
from ir_passes.uniformity import REMEDY, disordered, tells_places
from ir_passes.values import COMMON, Common, OneLane, Owner, PoolRows, Rows, Slot, Value, axis_of, moved
from ir_passes.violations import ViolationKind

OPAQUE = ("ffi_call", "pallas_call", "pure_callback", "io_callback", "debug_callback", "debug_print")


@rule(*ir.CALLS)
def call(site: Site, *operands: Value) -> list[Value]:
    """A function declared row-wise by its declaration, every other one by its body."""
    declaration = declaration_of(site.eqn)
    if declaration is None:
        body = ir.body_of(site.eqn)
        assert body is not None
        return site.prover.run(body.jaxpr, [site.prover.constant(c) for c in body.consts], list(operands))
    site.prover.assumed.add(f"row-wise: {declaration.name}")
    return _row_wise(site, declaration, operands)


def _row_wise(site: Site, declaration: RowWise, operands: tuple[Value, ...]) -> list[Value]:
    if len(operands) != len(declaration.inputs) or len(site.eqn.outvars) != len(declaration.outputs):
        message = (
            f"{declaration.name} is declared row-wise with {len(declaration.inputs)} arguments and "
            f"{len(declaration.outputs)} results, and called with {len(operands)} and {len(site.eqn.outvars)}"
        )
        owner = site.mixed(message, "correct its declaration", ViolationKind.OPAQUE)
        return [Value(owner) for _ in site.eqn.outvars]
    rows = [
        _as_rows(site, value.owner, entry, declaration.name)
        for value, entry in zip(operands, declaration.inputs, strict=True)
    ]
    owner = site.join(*rows)
    if disordered(owner):
        sides = zip(operands, site.shapes, declaration.inputs, strict=True)
        if any(isinstance(e, Lane) and tells_places(value, shape, e.axis) for value, shape, e in sides):
            owner = site.mixed("rows in an order that depends on all lanes meet a shared array of rows", REMEDY)
    return [
        Value(moved(owner, entry.axis) if isinstance(entry, Lane) and axis_of(owner) is not None else owner)
        for entry in declaration.outputs
    ]


def _as_rows(site: Site, owner: Owner, entry: Lane | Shared, name: str) -> Owner:
    axis = axis_of(owner)
    if axis is None:
        return owner
    if isinstance(entry, Lane) and axis == entry.axis and isinstance(owner, Rows):
        return moved(owner, 0)
    what = f"rows along axis {entry.axis}" if isinstance(entry, Lane) else "shared"
    message = f"an argument of {name} is declared as {what}, and holds different lanes along axis {axis}"
    return site.mixed(message, "put lanes where the declaration expects rows")


@rule(*OPAQUE)
def opaque(site: Site, *operands: Value) -> list[Value]:
    """By its declaration in the contract, found by the name of its target."""
    names = ir.targets_of(site.eqn)
    found = [site.prover.bound.opaque[name] for name in names if name in site.prover.bound.opaque]
    if not found:
        message = f"nothing is known of {' / '.join(names) or site.name}"
        remedy = "declare it: LaneContract(..., opaque={name: Opaque(inputs, outputs)})"
        site.report(ViolationKind.OPAQUE, message, remedy)
        owner = site.mixed(message, remedy, ViolationKind.OPAQUE)
        return [Value(owner) for _ in site.eqn.outvars]
    site.prover.assumed.add(f"opaque: {names[0]}")
    return _declared(site, found[0], operands, names[0])


def _declared(site: Site, entry: Opaque, operands: tuple[Value, ...], name: str) -> list[Value]:
    problem = _misfit(site, entry, operands)
    if problem is not None:
        owner = site.mixed(f"{name}: {problem}", "correct its Opaque declaration or the call", ViolationKind.OPAQUE)
        return [Value(owner) for _ in site.eqn.outvars]
    lanes: Owner = COMMON
    for value, declared in zip(operands, entry.inputs, strict=True):
        if isinstance(declared, Lane):
            lanes = site.join(lanes, moved(value.owner, 0) if axis_of(value.owner) is not None else value.owner)
    if disordered(lanes):
        lanes = site.mixed("rows in an order that depends on all lanes meet an opaque operation", REMEDY)
    results = []
    pools = [value for value, declared in zip(operands, entry.inputs, strict=True) if isinstance(declared, Pool)]
    for declared in entry.outputs:
        if isinstance(declared, Pool):
            value = pools.pop(0)
            results.append(Value(value.owner, version=site.prover.versions.succeed(value.version)))
        elif isinstance(declared, Lane) and axis_of(lanes) is not None:
            results.append(Value(moved(lanes, declared.axis)))
        else:
            results.append(Value(lanes if isinstance(declared, Lane) else COMMON))
    return results


def _misfit(site: Site, entry: Opaque, operands: tuple[Value, ...]) -> str | None:
    if len(entry.inputs) != len(operands) or len(entry.outputs) != len(site.eqn.outvars):
        declared = f"{len(entry.inputs)} operands and {len(entry.outputs)} results"
        return f"declared with {declared}, called with {len(operands)} and {len(site.eqn.outvars)}"
    for k, (value, declared) in enumerate(zip(operands, entry.inputs, strict=True)):
        owner = value.owner
        if isinstance(declared, Shared) and not isinstance(owner, Common):
            return f"operand {k} is declared Shared, and differs between lanes"
        if isinstance(declared, SlotMap) and not isinstance(value.fact, Slot):
            return f"operand {k} is declared a slot map, and is not one"
        if isinstance(declared, Pool) and not (isinstance(owner, PoolRows) and owner.axis == declared.axis):
            if not (isinstance(owner, Rows) and owner == Rows(declared.axis)) and not isinstance(owner, OneLane):
                return f"operand {k} is declared a pool, and is not one"
        if isinstance(declared, Lane) and isinstance(owner, Rows) and owner.axis != declared.axis:
            return f"operand {k} has lanes along axis {owner.axis}, declared along {declared.axis}"
        if isinstance(declared, Lane) and isinstance(owner, PoolRows):
            return f"operand {k} is declared by lane, and is a pool"
    return None
