"""Each family's tokenizer class is the one of transformers."""

import pytest

from models import FAMILIES
from models.families.tokenizers import CORRECTED, REGISTERED


@pytest.mark.oracle
def test_classes_of_families_match_transformers() -> None:
    from transformers.models.auto import tokenization_auto as auto

    kinds = {name for family in FAMILIES for name in family.model_types}
    registered = {kind: auto.TOKENIZER_MAPPING_NAMES[kind] for kind in kinds & auto.TOKENIZER_MAPPING_NAMES.keys()}
    assert registered == REGISTERED
    assert set(CORRECTED) == kinds & auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
