"""Rules of dimensions read the parameters that rules of owners read."""

from typing import Any

import pytest
from instances.catalogue import BUILDERS, installed, instance
from instances.meshes import BUILDERS as MESHES
from traced_programs import normal_program

from ir_passes.jaxpr import ir
from ir_passes.proof.dims.classes import fresh
from ir_passes.proof.dims.rules import DIMENSION_RULES
from ir_passes.proof.registry import PARAMETERS, RULES


class Spy(dict):
    """Parameters that record reads."""

    def __init__(self, params: dict[str, Any]):
        super().__init__(params)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)


IGNORED = set("""
dtype fill_value index_dtype indices_are_sorted is_stable limit_indices mode name new_dtype new_sizes num_keys out_dtype
reps repeats shape sizes slice_sizes start_indices strides unique_indices update_consts update_jaxpr
""".split())  # fmt: skip
"""Lengths and contents of arrays: dimensions keep their names with any length."""
OF_ELEMENTS = {
    "rev": {"dimensions"}, "sort": {"dimension"}, "split": {"axis"},
    **dict.fromkeys(("reshape", "squeeze"), {"dimensions"}),
}  # fmt: skip
"""Parameters that select elements and align no dimensions."""


@pytest.mark.slow
def test_labels_read_what_ownership_reads() -> None:
    """A parameter of an owner rule is read by the label rule, or excused."""
    missing = {}
    for name in sorted(filter(installed, set(DIMENSION_RULES) & set(BUILDERS) - set(MESHES))):
        read: set[str] = set()
        for seed in range(4):
            source = instance(name, seed)
            program = normal_program(source.step, *source.args())
            for eqn in (candidate for candidate in ir.all_eqns(program.jaxpr) if candidate.primitive.name == name):
                spy = Spy(dict(eqn.params))
                watched = eqn.replace(params=spy)
                assert watched.params is spy
                DIMENSION_RULES[name](watched, *(fresh(ir.shape_of(atom)) for atom in eqn.invars))
                read |= spy.read
        accepted = set(PARAMETERS[name].accepts or ())
        unread = (PARAMETERS[name].reads | accepted) - read - IGNORED - OF_ELEMENTS.get(name, set())
        if unread:
            missing[name] = unread
    assert missing == {}


def test_dimension_rules_are_for_supported_primitives() -> None:
    assert set(DIMENSION_RULES) <= set(RULES)
