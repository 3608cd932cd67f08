"""MTP head against the one of Hugging Face transformers."""

import pytest
from comparison import check_logits
from with_head import head_logits, load_with_head

pytestmark = pytest.mark.oracle
MAX_TIES = 1
FAMILIES = ("qwen3_next", "qwen3_5", "qwen3_5_moe")


def test_head_logits_behind_every_token(case):
    """Dense and expert models, both layouts and prefixes, one ragged batch."""
    result = head_logits(load_with_head(case.directory), case.prompts)
    ties = sum(
        check_logits(result[index], case.oracle.mtp_logits(prompt), f"{case.where(index)}, head", case.tolerance)
        for index, prompt in enumerate(case.prompts)
        if len(prompt) > 1
    )
    assert ties <= MAX_TIES
