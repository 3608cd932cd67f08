"""docs/tables/certificates.md lists every family, and says what compiling its steps finds."""

from pathlib import Path

import pytest
from certificate_table import NAMES, STEPS, certified, read

from models import FAMILIES


@pytest.fixture(scope="module")
def document(root: Path) -> str:
    return (root / "docs" / "tables" / "certificates.md").read_text()


def test_every_family_and_step_is_in_the_table(document: str) -> None:
    rows = read(document)
    assert tuple(rows) == NAMES, "run `python scripts/write_certificates.py`"
    assert {row.family for row in rows.values()} == {family.name for family in FAMILIES}
    for row in rows.values():
        assert len(row.verdicts) == len(STEPS)
        assert set(row.verdicts) == {"proved, audited"}, "and no copy of a pool"


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_table_is_what_compiling_finds(document: str, name: str) -> None:
    assert certified(name) == read(document)[name]
