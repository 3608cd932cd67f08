"""The benchmark's two sides sample the same tokens, so they do the same work."""

from pathlib import Path

import numpy as np
import pytest

import hybridlm
from hybridlm.bench.engine_side import WARM_UP as OUR_WARM_UP
from hybridlm.bench.engine_side import EngineSide
from hybridlm.bench.transformers_side import WARM_UP, TransformersSide

pytestmark = [pytest.mark.oracle, pytest.mark.long]


@pytest.mark.parametrize("name", ["mamba2_base", "kimi_base", "lfm2_base"])
def test_both_sides_draw_the_same_tokens(root: Path, name: str) -> None:
    """Models without attention keep their cache under another name."""
    directory = root / "tests" / "golden" / name
    lm = hybridlm.load(directory, lanes=2, context=64, chunk=16, dtype="float32")
    actual, reference = EngineSide(lm, 2, 6), TransformersSide(directory, "float32", 2, 6, 64)
    reference.decode(OUR_WARM_UP - WARM_UP)
    for _ in range(4):
        actual.decode(1)
        reference.decode(1)
        np.testing.assert_array_equal(actual.last, reference._last[:, 0].numpy())
