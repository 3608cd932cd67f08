"""Steps of a mixed batch have few idle places."""

from pathlib import Path

import pytest
from random_checkpoint import write_random_checkpoint

import hybridlm
from hybridlm.bench.mixed import OwnMixedSide, mixed_requests

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> hybridlm.LM:
    folder: Path = tmp_path_factory.mktemp("mixed_occupancy")
    directory = write_random_checkpoint("dense_base", folder, max_position_embeddings=2048)
    return hybridlm.load(directory, lanes=32, context=2048, progress=False, certify="off")


@pytest.mark.parametrize("seed", [0, 1])
def test_nine_tenths_of_the_places_are_real_tokens(lm: hybridlm.LM, seed: int) -> None:
    """64 requests, 32 at a time: as in `hybridlm bench --mixed` and docs/performance.md."""
    side = OwnMixedSide(lm, "ours")
    side.run(mixed_requests(64, lm.config.vocab_size, lm.engine.context, seed), sampled=False)
    assert side.prefill is not None and side.decode is not None
    assert 0.9 <= side.prefill <= 1 and 0.88 <= side.decode <= 1
