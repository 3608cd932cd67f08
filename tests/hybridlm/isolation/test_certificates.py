"""The page of certificates has a checkpoint of every family."""

import json

from certificate_table import GOLDEN, NAMES, STEPS, Row, table

from models import FAMILIES, family_of


def test_a_checkpoint_of_every_family_is_on_the_page() -> None:
    configs = [json.loads((GOLDEN / name / "config.json").read_text()) for name in NAMES]
    assert {family_of(config).name for config in configs} == {family.name for family in FAMILIES}


def test_the_page_counts_cells_with_copies() -> None:
    copied = ("proved, audited; 2 copies (conv)",) + ("proved, audited",) * (len(STEPS) - 1)
    text = table([Row("lfm2", "lfm2_base", copied)])
    assert f"in 1 of the {len(STEPS)} cells" in text
    assert f"| lfm2 | lfm2_base | {' | '.join(copied)} |" in text.splitlines()
