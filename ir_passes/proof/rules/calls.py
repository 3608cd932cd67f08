"""Calls of functions: by their bodies, or by a row-wise declaration."""

from ir_passes.contract.contract import Lane, Shared
from ir_passes.contract.declared import RowWise, declaration_of, has_declared_body
from ir_passes.contract.statements import Assumption
from ir_passes.jaxpr import ir, primitives
from ir_passes.proof import refusals
from ir_passes.proof.owners import Common, LaneRows, Mixed, Owner, axis_of, moved
from ir_passes.proof.registry import rule
from ir_passes.proof.site import Site, interpret
from ir_passes.proof.uniformity import disordered
from ir_passes.proof.values import Value

_AROUND_THE_BODY = """
bwd compiler_options_kvs ctx_mesh differentiated donated_invars fwd_jaxpr_thunk in_layouts in_shardings in_tree inline
jvp_jaxpr_fun keep_unused name num_consts out_layouts out_shardings out_tree out_trees policy prevent_cse rule
symbolic_zeros
"""
"""Parameters of a call except its body: for compilation, derivatives and batching."""


@rule(*primitives.CALLS, reads=" ".join(primitives.CALLS.values()), ignores=_AROUND_THE_BODY)
def call(site: Site, *operands: Value) -> list[Value]:
    declaration = declaration_of(site.eqn)
    if declaration is None:
        body = ir.body_of(site.eqn)
        assert body is not None
        return interpret(site.prover, body, operands)
    site.prover.assumed.add(Assumption.ROW_WISE.statement(declaration.name))
    return _row_wise(site, declaration, operands)


@rule("custom_linear_solve", reads="const_lengths jaxprs")
def linear_solve(site: Site, *operands: Value) -> list[Value]:
    """Interpret the solving program; the others are for derivatives."""
    lengths, programs = site.params["const_lengths"], site.params["jaxprs"]
    skipped = lengths.matvec + lengths.vecmat
    consts, right_sides = operands[skipped : skipped + lengths.solve], operands[sum(lengths) :]
    return interpret(site.prover, ir.closed(programs.solve), [*consts, *right_sides])


def _row_wise(site: Site, declaration: RowWise, operands: tuple[Value, ...]) -> list[Value]:
    if (problem := _misfit(site, declaration)) is not None:
        return [Value(site.mixed(*problem)) for _ in site.eqn.outvars]
    rows = [
        _as_rows(site, value.owner, entry, declaration.name)
        for value, entry in zip(operands, declaration.inputs, strict=True)
    ]
    owner = site.join(*rows)
    if disordered(owner):  # a row's result may depend on its place
        owner = site.mixed(*refusals.ORDER_MEETS_CALL)
    return [declared_result(site, declaration.name, k, entry, owner) for k, entry in enumerate(declaration.outputs)]


def declared_result(site: Site, name: str, k: int, entry: Lane | Shared, lanes: Owner) -> Value:
    """Return result k of a declared call of operands with these lanes."""
    if isinstance(entry, Lane) or isinstance(lanes, Common | Mixed):
        return Value(moved(lanes, getattr(entry, "axis", 0)))
    return Value(site.mixed(*refusals.SHARED_RESULT(name=name, k=k)))


def _misfit(site: Site, declaration: RowWise) -> refusals.RefusalText | None:
    results = ir.shapes(site.eqn.outvars)
    if len(site.shapes) != len(declaration.inputs) or len(results) != len(declaration.outputs):
        return refusals.other_counts(declaration, site.shapes, results)
    entries = zip((*declaration.inputs, *declaration.outputs), (*site.shapes, *results), strict=True)
    lengths = {shape[e.axis : e.axis + 1] for e, shape in entries if isinstance(e, Lane)}
    if len(lengths) > 1:
        return refusals.unequal_rows(declaration.name, lengths)
    is_declared = has_declared_body(site.eqn, site.prover.invariance)
    return None if is_declared else refusals.OTHER_BODY(name=declaration.name)


def _as_rows(site: Site, owner: Owner, entry: Lane | Shared, name: str) -> Owner:
    axis = axis_of(owner)
    if axis is None:
        return owner
    if isinstance(entry, Lane) and axis == entry.axis and isinstance(owner, LaneRows):
        return moved(owner, 0)
    expected = f"rows along axis {entry.axis}" if isinstance(entry, Lane) else "shared"
    return site.mixed(*refusals.OTHER_ROWS(name=name, expected=expected, axis=axis))
