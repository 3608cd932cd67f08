"""Every id of a statement is short and unique, every sentence is one sentence."""

import re
import string
from collections import Counter

import pytest

from ir_passes.contract import statements
from ir_passes.contract.statements import AuditClaim, Claim, Statement, StatementId
from ir_passes.proof.violations import ViolationKind
from ir_passes.xla_audit.audit import REFUTED_BY
from ir_passes.xla_audit.findings import FindingKind

LISTS = [*(one for one in vars(statements).values() if isinstance(one, type) and issubclass(one, StatementId))]
LISTS = [one for one in [*LISTS, ViolationKind, FindingKind] if one is not StatementId]


@pytest.mark.parametrize("ids", LISTS, ids=lambda one: one.__name__)
def test_ids_and_sentences(ids: type[StatementId]) -> None:
    assert len(ids) > 0
    for one in ids:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", one.value)
        details = {name: name for _, name, _, _ in string.Formatter().parse(one.sentence) if name}
        made = one.statement("args[0]", **details)
        assert (made.id, made.about) == (one, "args[0]")
        assert made.sentence[0].isupper() or made.sentence.startswith(("name_dims", "check_vma"))
        assert made.sentence[-1] == "." or one.sentence[-1] == "}"
        assert str(made) == f"{one.value} (args[0]): {made.sentence}"
    counts = Counter(one.sentence for one in ids)
    assert [sentence for sentence, count in counts.items() if count > 1] == []


def test_every_finding_refutes_one_claim() -> None:
    counts = Counter(kind for kinds in REFUTED_BY.values() for kind in kinds)
    assert counts == dict.fromkeys(FindingKind, 1)
    assert [*REFUTED_BY] == [*AuditClaim]


def test_statements_sort_and_compare_by_what_they_say() -> None:
    one, other = Claim.FRAME.statement(), Claim.IDLE.statement()
    assert sorted([other, one]) == [one, other]
    assert one == Statement("frame", "", Claim.FRAME.sentence) != other
