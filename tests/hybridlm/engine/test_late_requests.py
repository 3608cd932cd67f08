"""Requests that arrive while others decode: their first token, and steps of the others meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from random_checkpoint import write_random_checkpoint

import hybridlm
from hybridlm.engine.scheduler import MAX_PREFILL_RUN

LANES = 4


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> hybridlm.LM:
    directory: Path = write_random_checkpoint("dense_base", tmp_path_factory.mktemp("late_requests"))
    return hybridlm.load(directory, lanes=LANES, context=256, chunk=8, progress=False, certify="off")


def prompt(tokens: int) -> list[int]:
    return [3 + (5 * i * i + tokens) % 60 for i in range(tokens)]


@contextmanager
def recorded(lm: hybridlm.LM) -> Iterator[list[str]]:
    """Record the kind of each step that the engine runs: "prefill" or "decode"."""
    kinds, dispatch = list[str](), lm.engine.run

    def record(shape: Any, *args: Any, **options: Any) -> Any:
        kinds.append("prefill" if shape.step == "generate" and shape.tokens > 1 else "decode")
        return dispatch(shape, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lm.engine, "run", record)
        yield kinds


def run(
    lm: hybridlm.LM, late: list[int], speculate: str | None = None
) -> tuple[list[str], dict[int, int], list[list[int]]]:
    """Submit prompts of these lengths while two requests decode.

    Returns:
        The kinds of steps after the arrival, the calls of `step` until each late request's first token, and all tokens.
    """
    first = dict[int, int]()
    with recorded(lm) as kinds, lm.session(speculate=speculate) as session:  # type: ignore[arg-type]
        for _ in range(2):
            session.submit(prompt(4), max_tokens=60, ignore_eos=True)
        while not session.step():
            pass
        kinds.clear()
        for length in late:
            session.submit(prompt(length), max_tokens=4, ignore_eos=True)
        outputs: dict[int, list[int]] = {}
        calls = 0
        while session.busy:
            calls += 1
            for event in session.step():
                if event.index >= 2:
                    first.setdefault(event.index, calls)
                if event.completion is not None:
                    outputs[event.index] = list(event.completion.token_ids)
    return kinds, first, [outputs[index] for index in sorted(outputs)]


@pytest.mark.slow
def test_a_short_late_prompt_waits_for_one_step(lm: hybridlm.LM) -> None:
    kinds, first, _ = run(lm, [5])
    assert kinds[0] == "prefill"
    assert first[2] == 2  # the call that dispatches the prefill step, and the call that reads its token


@pytest.mark.slow
@pytest.mark.parametrize("speculate", [None, "ngram"])
def test_a_long_late_prompt_does_not_stall_decoding(lm: hybridlm.LM, speculate: str | None) -> None:
    kinds, _, tokens = run(lm, [200], speculate)
    prefills = [i for i, kind in enumerate(kinds) if kind == "prefill"]
    between = [kind for kind in kinds[: prefills[-1]] if kind == "decode"]
    assert len(prefills) == 25 and len(between) == 24 // MAX_PREFILL_RUN
    runs = "".join(kind[0] for kind in kinds).split("d")
    assert max(map(len, runs)) == MAX_PREFILL_RUN <= 2
    single = lm.generate([prompt(200)], max_tokens=4, ignore_eos=True)
    assert tokens[2] == single[0].token_ids


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> hybridlm.LM:
    directory: Path = write_random_checkpoint("dense_base", tmp_path_factory.mktemp("late_of_many"))
    return hybridlm.load(directory, lanes=32, context=256, chunk=8, progress=False, certify="off")


Settings = dict[str, Any]


class Queue:
    """A session whose steps are counted until each late request or its prompt is part of one."""

    def __init__(self, lm: hybridlm.LM, session: hybridlm.Session, patch: pytest.MonkeyPatch):
        self.session, self._run = session, lm.engine.run
        self.steps, self._arrived = 0, dict[int, int]()
        self.waits: dict[int, int] = {}
        patch.setattr(lm.engine, "run", self._counted)

    def _counted(self, *arguments: Any, owners: Any, **options: Any) -> Any:
        for owner in owners:
            numbers = [owner.request.index] if hasattr(owner, "request") else self.session._prompts.get(owner, [])
            for number in numbers:
                if number in self._arrived:
                    self.waits.setdefault(number, self.steps - self._arrived[number])
        self.steps += 1
        return self._run(*arguments, owners=owners, **options)

    def submit(self, length: int, **settings: Any) -> int:
        number = self.session.submit(prompt(length), ignore_eos=True, **settings)
        self._arrived[number] = self.steps
        return number


@pytest.mark.slow
@pytest.mark.parametrize("read, late", [
    ({}, {}), ({}, {"prompt_logprobs": 0}), ({"prompt_logprobs": 0}, {}),
    ({"prompt_logprobs": 0}, {"prompt_logprobs": 0}),
], ids=["a prompt after prompts", "a text after prompts", "a prompt after texts", "a text after texts"])  # fmt: skip
@pytest.mark.parametrize("together", [1, 3])
def test_a_late_request_waits_for_two_steps_at_most(
    many: hybridlm.LM, read: Settings, late: Settings, together: int
) -> None:
    """Of 32 sequences most decode, and more long prompts are read than a step has lanes."""
    with pytest.MonkeyPatch.context() as patch, many.session() as session:
        queue = Queue(many, session, patch)
        for _ in range(23):
            queue.submit(4, max_tokens=150)
        while len(session._scheduler.decoding) < 23:
            session.step()
        long = [queue.submit(230 + i, max_tokens=2, **read) for i in range(6)]
        for _ in range(12):
            session.step()
        late_numbers = list[int]()
        for phase in range(8):
            for _ in range(phase):
                session.step()
            numbers = [queue.submit(5 + i, max_tokens=1, **late) for i in range(together)]
            while not set(numbers) <= set(queue.waits):
                session.step()
            late_numbers += numbers
            while session._alive.keys() & set(numbers):
                session.step()
        waits = [queue.waits[number] for number in late_numbers]
        assert max(waits) <= 2, waits
        decoding = session._scheduler.decoding
        assert len(decoding) >= 23 and set(long) & session._alive.keys(), "prompts are read all the time"


def test_prompts_without_decoding_sequences_are_read_at_once(lm: hybridlm.LM) -> None:
    with recorded(lm) as kinds:
        lm.generate([prompt(200)], max_tokens=2, ignore_eos=True)
    assert kinds == ["prefill"] * 25 + ["decode"]
