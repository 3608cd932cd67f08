"""A forked model raises an error where JAX would wait forever."""

import os
from pathlib import Path
from typing import Any

import pytest
from forked import outcomes

import hybridlm

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")


def test_every_call_is_refused(text_lm: hybridlm.LM, tmp_path: Path) -> None:
    lm: Any = text_lm
    prefix, session, stream = lm.prefix([5, 6, 7]), lm.session(), lm.stream([[5, 6]], max_tokens=3)
    (tmp_path / "in.txt").write_text("abc\n")
    session.submit([5, 6, 7], max_tokens=3)
    calls: dict[str, Any] = {
        "score": lambda: lm.score([[5, 6]]),
        "prefix": lambda: lm.score([[8, 9]], prefix=prefix),
        "generate": lambda: lm.generate([[5, 6]], max_tokens=2),
        "stream": lambda: next(stream),
        "session": lm.session,
        "submit": lambda: session.submit([5, 6]),
        "step": session.step,
        "forward": lambda: lm.forward([5, 6]),
        "embed": lambda: lm.embed([[5, 6]]),
        "decide": lambda: lm.decide("x", {"q": {"type": "noul"}}),
        "choose": lambda: lm.choose([5], [[6], [7]]),
        "perplexity": lambda: lm.perplexity([[5, 6]]),
        "divergence": lambda: lm.divergence(lm, [[5, 6]]),
        "file": lambda: lm.score_file(tmp_path / "in.txt", tmp_path / "out.jsonl"),
        "batch": lambda: lm.batch_file(tmp_path / "in.txt", tmp_path / "out.jsonl"),
        "update": lambda: lm.update(dict(lm.params)),
        "warmup": lm.warmup,
        "load": lambda: hybridlm.load(lm.path),
    }
    result = outcomes({"repr": lambda: repr(lm), **calls})
    assert result == {"repr": "returned", **dict.fromkeys(calls, "ForkedProcessError")}
    assert len(lm.score([[5, 6]])) == 1, "the parent goes on"
    session.close()
