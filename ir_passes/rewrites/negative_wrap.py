"""Remove the wrap of negative indices, by which JAX makes -1 the last row."""

from ir_passes.jaxpr import ir
from ir_passes.rewrites.slot_entries import IndexFacts, shape

# Operations that keep all components of an array of row numbers.
LAYOUT = frozenset({"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "convert_element_type"})


class NegativeWrap:
    """The places of a jaxpr where negative row numbers are wrapped."""

    def __init__(self, jaxpr: ir.Jaxpr, facts: IndexFacts) -> None:
        self._made_by = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
        self._facts = facts

    def removed(self, index: ir.Atom, column: int | None, rows: int) -> tuple[list[ir.JaxprEqn], ir.Atom] | None:
        """The equations of an index without the wrap, and its new name; None if no wrap is found.

        Args:
            index: row numbers, or index vectors along the last dimension.
            column: the component that is the row, None where every element is one.
            rows: of the pool, which the wrap adds to negative numbers.
        """
        eqn = self._maker(index)
        if eqn is None:
            return None
        raw = self._raw(eqn, rows)
        if raw is not None and column is None:
            return self.removed(raw, None, rows) or ([], raw)
        name, invars = eqn.primitive.name, list(eqn.invars)
        place, inner = 0, column
        if name == "concatenate" and column is not None and eqn.params["dimension"] == len(shape(index)) - 1:
            inner = column
            while inner >= shape(invars[place])[-1]:
                inner -= shape(invars[place])[-1]
                place += 1
            inner = None if shape(invars[place])[-1] == 1 else inner
        elif not (name in LAYOUT and column is None):
            return None
        found = self.removed(invars[place], inner, rows)
        if found is None:
            return None
        before, invars[place] = found
        results = ir.fresh(eqn.outvars)
        return [*before, eqn.replace(invars=invars, outvars=results)], results[0]

    def _raw(self, pick: ir.JaxprEqn, rows: int) -> ir.Atom | None:
        """i of `select_n(i < 0, i, i + rows)`."""
        if pick.primitive.name != "select_n" or len(pick.invars) != 3:
            return None
        below, raw, wrapped = pick.invars
        less, plus = self._maker(below), self._maker(wrapped)
        if less is None or plus is None or (less.primitive.name, plus.primitive.name) != ("lt", "add"):
            return None
        known = self._facts.of(less.invars[1]), self._facts.of(plus.invars[1])
        same = less.invars[0] is raw and plus.invars[0] is raw
        return raw if same and known == (0, rows) else None

    def _maker(self, atom: ir.Atom) -> ir.JaxprEqn | None:
        return None if isinstance(atom, ir.Literal) else self._made_by.get(atom)
