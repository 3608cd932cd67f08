"""Cached states of a prefix cache against states that were read without a cache."""

import numpy as np

import hybridlm
from hybridlm.engine.snapshot_file import _arrays


def assert_kept_agrees(cold: hybridlm.LM, warm: hybridlm.LM, prompt: list[int], tolerance: float) -> None:
    """Compare all arrays of the state after a prompt, relative to the largest number."""
    cache = warm.engine.prefix_cache
    assert cache is not None
    with cache.pinned([*prompt, 5], None) as snapshot:
        want = cold.prefix([*prompt, 5]).snapshot
        assert (
            snapshot is not None
            and snapshot.label.position == len(prompt)
            and snapshot.label.tokens == want.label.tokens
        )
        for part, got, expected in zip(want.label.kind.layout, _arrays(snapshot), _arrays(want), strict=True):
            if part.path == "token":
                continue  # the token sampled by the state's writer
            if tolerance:
                limit = tolerance * max(1.0, float(np.abs(expected).max(initial=0)))
                np.testing.assert_allclose(got, expected, rtol=0, atol=limit, err_msg=str(part))
            else:
                assert got.tobytes() == expected.tobytes(), part
