"""Dense arrays of log-probabilities, and short reprs of arrays of users."""

import numpy as np
import pytest

from hybridlm.requests.results import Completion, TokenLogprobs


def test_dense_arrays_have_a_row_for_each_token() -> None:
    ids, logprobs = np.array([7, 3, 5], np.int32), np.array([-0.5, -1.5, -2.5], np.float32)
    entries = TokenLogprobs(ids, logprobs, np.array([1, 2, 9], np.int32), np.array([0, 0, 2, 3]))
    dense_ids, dense_logprobs, ranks = entries.dense()
    assert dense_ids.tolist() == [[-1, -1], [7, 3], [5, -1]] and dense_ids.dtype == np.int32
    np.testing.assert_array_equal(dense_logprobs, [[np.nan, np.nan], [-0.5, -1.5], [-2.5, np.nan]])
    assert dense_logprobs.dtype == np.float32 and ranks.tolist() == [[0, 0], [1, 2], [9, 0]]


@pytest.mark.parametrize("tokens", [0, 3])
def test_dense_arrays_without_entries_are_empty(tokens: int) -> None:
    none = np.zeros(0, np.int32)
    entries = TokenLogprobs(none, none.astype(np.float32), none, np.zeros(tokens + 1, np.int64))
    assert [array.shape for array in entries.dense()] == [(tokens, 0)] * 3


def test_most_likely_tokens_of_a_completion_as_arrays() -> None:
    best: list[dict[int, float]] = [{4: -0.25, 2: -1.5}, {}, {9: -0.125, 1: -3.0}]
    completion = Completion("a", [4, 8, 9], [-0.25, float("nan"), -0.125], best, "length", [1])
    assert completion.top is not None
    ids, logprobs, ranks = completion.top.dense()
    assert ids.tolist() == [[4, 2], [-1, -1], [9, 1]] and ranks.tolist() == [[1, 2], [0, 0], [1, 2]]
    np.testing.assert_array_equal(logprobs[[0, 2]], np.array([[-0.25, -1.5], [-0.125, -3.0]], np.float32))
    assert Completion("a", [4], None, None, "length", [1]).top is None
