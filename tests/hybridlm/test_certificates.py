"""docs/certificates.md lists every family, and says what compiling its steps finds."""

from pathlib import Path

import jax
import pytest
from certificate_table import NAMES, STEPS, certified, read, version, without_counts

from models import FAMILIES


@pytest.fixture(scope="module")
def document(root: Path) -> str:
    return (root / "docs" / "certificates.md").read_text()


def test_every_family_and_step_is_in_the_table(document: str) -> None:
    rows = read(document)
    assert tuple(rows) == NAMES, "run `python scripts/write_certificates.py`"
    assert {row.family for row in rows.values()} == {family.name for family in FAMILIES}
    for row in rows.values():
        assert len(row.verdicts) == len(STEPS)
        assert {without_counts(verdict) for verdict in row.verdicts} == {"proved, audited"}
        assert all(verdict.endswith("(conv)") for verdict in row.verdicts if ";" in verdict), row


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_table_is_what_compiling_finds(document: str, name: str) -> None:
    """To the number of copies where the compiler is the same."""
    expected, found = read(document)[name], certified(name)
    assert found.family == expected.family
    if version(document) == jax.__version__ and jax.default_backend() == "cpu":
        assert found.verdicts == expected.verdicts
    else:
        assert [without_counts(one) for one in found.verdicts] == [without_counts(one) for one in expected.verdicts]
