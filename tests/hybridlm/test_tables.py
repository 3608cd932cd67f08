"""Results as Arrow tables and pandas frames."""

import math

import numpy as np
import pyarrow as pa
import pytest

from hybridlm import Choice, Completion, MissingExtra, Score, to_table

SCORES = [
    Score([5, 6], np.array([math.nan, -0.5], np.float32), np.array([False, True]), [{}, {6: -0.5, 7: -1.0}]),
    Score([9], np.array([math.nan], np.float32), np.array([False]), [{}]),
]


def test_scores():
    table = to_table(SCORES)
    assert table.to_pylist() == [
        {
            "token_ids": [5, 6],
            "logprobs": [None, -0.5],
            "greedy": [False, True],
            "sum_logprob": -0.5,
            "perplexity": pytest.approx(math.exp(0.5)),
            "top_logprobs": [[], [{"token_id": 6, "logprob": -0.5}, {"token_id": 7, "logprob": -1.0}]],
        },
        {
            "token_ids": [9], "logprobs": [None], "greedy": [False], "sum_logprob": 0.0, "perplexity": None,
            "top_logprobs": [[]],
        },
    ]  # fmt: skip
    assert table.schema.field("token_ids").type == pa.list_(pa.int32())
    assert table.schema.field("logprobs").type == pa.list_(pa.float32())


def test_completions_with_and_without_optional_fields():
    completion = Completion("a", [5], [-0.5], [{5: -0.5}], "stop", [1, 2])
    plain = Completion(None, [5, 6], None, None, "length", [1])
    assert "top_logprobs" not in to_table([plain]).column_names
    first, second = to_table([completion, plain]).to_pylist()
    assert first["top_logprobs"] == [[{"token_id": 5, "logprob": -0.5}]] and first["text"] == "a"
    assert second == {
        "text": None, "token_ids": [5, 6], "finish_reason": "length", "prompt_token_ids": [1], "logprobs": None,
        "top_logprobs": None,
    }  # fmt: skip


def test_choices():
    choice = Choice(["a", "b"], [[5], [6, 7]], [np.array([-2.0]), np.array([-0.5, -0.5])], [False, True])
    assert to_table([choice]).to_pylist() == [
        {"options": ["a", "b"], "sums": [-2.0, -1.0], "per_token": [-2.0, -0.5], "greedy": [False, True], "best": 1}
    ]


def test_other_objects_than_results_are_refused(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match="at least one result"):
        to_table([])
    with pytest.raises(TypeError, match="got Score and, at 2, str"):
        to_table([*SCORES, "x"])  # type: ignore[list-item]  # wrong on purpose
    with pytest.raises(TypeError, match="one of Score, Completion, Choice, got int"):
        to_table([1])  # type: ignore[list-item]  # wrong on purpose
    monkeypatch.setattr("hybridlm.errors.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"to_table: needs pyarrow"):
        to_table(SCORES)
