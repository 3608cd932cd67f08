"""`load(sanitize=True)`: right runs pass and give the same tokens; a scheduler that mixes up rows is caught."""

from collections.abc import Callable
from typing import Any

import pytest
from text_checkpoint import SETTINGS

import hybridlm
from hybridlm._engine import Engine
from hybridlm._rows import RowPool
from hybridlm._scheduler import Scheduler
from ir_passes import SanitizerError

PROMPTS = ["Ada", "a longer prompt of many letters", "b", "chunk", "six___"]
FREE: dict[str, Any] = {"max_tokens": 6, "ignore_eos": True}


@pytest.fixture(scope="module")
def sanitized(text_lm: hybridlm.LM) -> hybridlm.LM:
    return hybridlm.load(text_lm.path, sanitize=True, **SETTINGS)


def test_right_runs_pass(text_lm: hybridlm.LM, sanitized: hybridlm.LM) -> None:
    """Twice, so that rows are reused; scoring between."""
    want = text_lm.generate(PROMPTS, **FREE)
    scores = text_lm.score(PROMPTS)
    for _ in range(2):
        assert [c.token_ids for c in sanitized.generate(PROMPTS, **FREE)] == [c.token_ids for c in want]
        for got, expected in zip(sanitized.score(PROMPTS), scores, strict=True):
            assert got.logprobs[1:] == pytest.approx(expected.logprobs[1:], abs=1e-4)
    assert sanitized._engine.sanitizer is not None and sanitized._engine.sanitizer.steps > 20


@pytest.mark.long
def test_one_sequence_alone(text_lm: hybridlm.LM, sanitized: hybridlm.LM) -> None:
    assert sanitized.generate("Ada", **FREE)[0].token_ids == text_lm.generate("Ada", **FREE)[0].token_ids


def other_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences are computed in each other's rows."""
    right = Scheduler._by_lane
    calls = iter(range(10**9))

    def wrong(self: Scheduler, pool: RowPool, sequences: list[Any]) -> list[Any]:
        lanes = right(self, pool, sequences)
        return [lanes[1], lanes[0], *lanes[2:]] if next(calls) == 4 else lanes

    monkeypatch.setattr(Scheduler, "_by_lane", wrong)


def no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished prompt does not arrive in the decode pool."""
    monkeypatch.setattr(Engine, "copy", lambda *args: None)


def wrong_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence goes on one token further than it is."""
    right = Scheduler._draw

    def wrong(self: Scheduler) -> Any:
        self.decoding[0].consumed += 1
        return right(self)

    monkeypatch.setattr(Scheduler, "_draw", wrong)


def one_array_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy of a row forgets one array of the group."""
    right = Engine.copy

    def wrong(self: Engine, source: RowPool, read: Any, target: RowPool, write: Any) -> None:
        before = target.look().layers
        assert self.sanitizer is not None
        ghosts = self.sanitizer._of(target)
        right(self, source, read, target, write)
        after = target.take()
        target.put(after._replace(layers=(before[0], *after.layers[1:])))
        kept = self.sanitizer._ghosts[target]
        self.sanitizer._ghosts[target] = (*ghosts[:2], *kept[2:])

    monkeypatch.setattr(Engine, "copy", wrong)


@pytest.mark.parametrize("fault", [other_lanes, no_copy, wrong_position, one_array_behind])
def test_a_scheduler_that_mixes_up_rows_is_caught(
    sanitized: hybridlm.LM, fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sanitized.generate(PROMPTS[:3], **FREE)
    fault(monkeypatch)
    with pytest.raises(SanitizerError, match=r"argument 1\.(layers|token)"):
        sanitized.generate(PROMPTS[:3], **FREE)
