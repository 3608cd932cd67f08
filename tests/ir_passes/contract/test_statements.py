"""Every id of a statement is short and unique, every sentence is one sentence."""

import re
import string
from collections import Counter

import pytest

from ir_passes import FindingKind, ViolationKind
from ir_passes.contract import statements
from ir_passes.contract.statements import Claim, Statement, StatementId

LISTS = [*(var for var in vars(statements).values() if isinstance(var, type) and issubclass(var, StatementId))]
LISTS = [item for item in [*LISTS, ViolationKind, FindingKind] if item is not StatementId]


@pytest.mark.parametrize("ids", LISTS, ids=lambda function: function.__name__)
def test_ids_and_sentences(ids: type[StatementId]) -> None:
    assert len(ids) > 0
    for item in ids:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", item.value)
        details = {name: name for _, name, _, _ in string.Formatter().parse(item.sentence) if name}
        result = item.statement("args[0]", **details)
        assert (result.id, result.about) == (item, "args[0]")
        assert result.sentence[0].isupper() or result.sentence.startswith(("name_dims", "check_vma"))
        assert result.sentence[-1] == "." or item.sentence[-1] == "}"
        assert str(result) == f"{item.value} (args[0]): {result.sentence}"
    assert [sentence for sentence, count in Counter(entry.sentence for entry in ids).items() if count > 1] == []


def test_statements_sort_and_compare_by_content() -> None:
    item, other = Claim.FRAME.statement(), Claim.IDLE.statement()
    assert sorted([other, item]) == [item, other]
    assert item == Statement("frame", "", Claim.FRAME.sentence) != other
