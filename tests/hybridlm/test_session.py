"""Continuous batching: requests join and leave at any step, rows move, runs are cut short."""

from typing import Any

import jax
import numpy as np
import pytest
from random_traffic import completed, finished

import hybridlm
from ir_passes import SlotError, SlotFault

SETTINGS: dict[str, Any] = {"max_tokens": 9, "ignore_eos": True}
PROMPTS = ["Ada", "a longer prompt of many letters", "b", "chunk", "six___"]


def test_requests_join_at_any_step(text_lm: hybridlm.LM) -> None:
    """Requests that are submitted between steps equal one call with all of them."""
    want = text_lm.generate(PROMPTS, **SETTINGS)
    completions: dict[int, hybridlm.Completion] = {}
    with text_lm.session() as session:
        for number, prompt in enumerate(PROMPTS):
            assert session.submit(prompt, **SETTINGS) == number
            for _ in range(number):
                completions |= completed(session)
        completions |= finished(session)
        assert session.step() == []
    assert [completions[i].token_ids for i in range(len(PROMPTS))] == [c.token_ids for c in want]


def test_events_tell_every_token_once(text_lm: hybridlm.LM) -> None:
    tokens: dict[int, list[int]] = {}
    texts: dict[int, str] = {}
    for event in text_lm.stream(PROMPTS, **SETTINGS):
        tokens.setdefault(event.index, []).append(event.token)  # type: ignore[arg-type]  # every event has one here
        texts[event.index] = texts.get(event.index, "") + event.text
        if event.completion is not None:
            assert tokens[event.index] == event.completion.token_ids and texts[event.index] == event.completion.text
    assert len(tokens) == len(PROMPTS) and all(len(sampled) == 9 for sampled in tokens.values())


def test_of_those_that_wait_the_highest_priority_goes_first(text_lm: hybridlm.LM) -> None:
    with text_lm.session() as session:
        for priority in (0, 0, 0, 0, 5, 1, 5):
            session.submit([7, 8, 9], priority=priority, max_tokens=2, ignore_eos=True)
        ended = list(finished(session))
    assert ended == [4, 6, 5, 0, 1, 2, 3]


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5])
def test_cancel(text_lm: hybridlm.LM, steps: int) -> None:
    """A waiting, prefilling or decoding request ends with its tokens; the others stay."""
    want = text_lm.generate(PROMPTS, **SETTINGS)
    with text_lm.session() as session:
        for prompt in PROMPTS:
            session.submit(prompt, **SETTINGS)
        completions = {}
        for _ in range(steps):
            completions |= completed(session)
        for index in (1, 4):
            session.cancel(index)
        with pytest.raises(KeyError, match="request 1 is not alive; alive are"):
            session.cancel(1)
        completions |= finished(session)
    for index, completion in completions.items():
        if index in (1, 4):
            assert completion.finish_reason == "cancelled"
            assert completion.token_ids == want[index].token_ids[: len(completion.token_ids)]
            assert len(completion.token_ids) < 9
        else:
            assert completion == want[index]


def test_steps_have_as_many_lanes_as_sequences(text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    """One lane, then three, then one again: the first sequence keeps its row."""
    monkeypatch.setattr("hybridlm.engine.scheduler.SHRINK_PLACES", 10)
    settings: dict[str, Any] = {"ignore_eos": True, "max_tokens": 40}
    (want,) = text_lm.generate("first", **settings)
    lanes, rows, run = [], set(), text_lm.engine.run

    def recorded(shape: Any, *args: Any, **about: Any) -> Any:
        if shape.tokens == 1:
            lanes.append(shape.lanes)
        return run(shape, *args, **about)

    monkeypatch.setattr(text_lm.engine, "run", recorded)
    with text_lm.session() as session:
        session.submit("first", **settings)
        completions = {}
        for step in range(200):
            if step == 6:
                for prompt in (PROMPTS[0], PROMPTS[2]):
                    session.submit(prompt, max_tokens=4, ignore_eos=True)
            completions |= completed(session)
            queue: Any = session._scheduler
            pool = queue._pool
            slots = [sequence.slot for sequence in queue.joined if sequence.request.index == 0]
            if pool is not None and slots and slots[0] is not None:
                rows.add((pool.size, *pool.rows_of([slots[0]])))
            if not session.busy:
                break
    assert list(dict.fromkeys(lanes)) == [1, 3] and lanes[-1] == 1 and rows == {(3, 0)}
    equal = [a == b for a, b in zip(completions[0].token_ids, want.token_ids, strict=True)]
    assert all(equal) or not near_tie_absent(text_lm, want, equal.index(False))


def near_tie_absent(lm: hybridlm.LM, want: hybridlm.Completion, position: int) -> bool:
    logits = np.asarray(lm.forward(want.prompt_token_ids + want.token_ids[:position]).logits[-1])
    best = np.sort(logits)[-2:]
    return bool(best[1] - best[0] > 2e-3)


def test_a_step_is_dispatched_before_the_last_one_is_read(text_lm: hybridlm.LM) -> None:
    """Only explicit transfers go between host and device: tokens come back one step behind."""
    text_lm.generate([[7, 8, 9]], **SETTINGS)
    steps = text_lm.stats["steps"]
    with jax.transfer_guard("disallow"), text_lm.session() as session:
        session.submit([7, 8, 9], **SETTINGS)
        assert session.step() == [] and text_lm.stats["steps"] == steps + 1
        first = session.step()
        assert [event.index for event in first] == [0] and text_lm.stats["steps"] == steps + 2
        finished(session)
    assert text_lm.stats["steps"] == steps + 9, "no surplus step: the last one is known by its number"


def test_a_decoding_step_on_one_device_puts_no_operand_by_itself(
    text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operands on the host go to the device with the call of the step."""
    with text_lm.session() as session:
        session.submit([7, 8, 9], **SETTINGS)
        for _ in range(2):
            session.step()
        steps, copies = text_lm.stats["steps"], []
        monkeypatch.setattr(jax, "device_put", lambda *args, **kwargs: copies.append(args))
        session.step()
        assert text_lm.stats["steps"] == steps + 1 and copies == []
        monkeypatch.undo()
        finished(session)


def test_the_surplus_step_of_a_sequence_that_stopped_changes_no_other(text_lm: hybridlm.LM) -> None:
    want = text_lm.generate(PROMPTS, **SETTINGS)
    stop = want[0].token_ids[3]
    steps = text_lm.stats["steps"]
    (stopped,) = text_lm.generate(PROMPTS[:1], stop=[stop], **SETTINGS)
    until = want[0].token_ids.index(stop) + 1
    assert len(stopped.token_ids) == until and text_lm.stats["steps"] == steps + until + 1
    batched = text_lm.generate(PROMPTS, stop=[stop], **SETTINGS)
    for got, free in zip(batched, want, strict=True):
        assert got.token_ids == free.token_ids[: len(got.token_ids)]


def test_an_interrupted_wait_loses_no_token(text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    want = text_lm.generate(PROMPTS, **SETTINGS)
    get, calls = jax.device_get, iter(range(10**9))

    def interrupted(tree: Any) -> Any:
        if next(calls) % 3 == 1:
            raise KeyboardInterrupt
        return get(tree)

    monkeypatch.setattr(jax, "device_get", interrupted)
    completions = {}
    with text_lm.session() as session:
        for prompt in PROMPTS:
            session.submit(prompt, **SETTINGS)
        while session.busy:
            try:
                events = session.step()
            except KeyboardInterrupt:
                continue
            completions |= {event.index: event.completion for event in events if event.completion}
    assert [completions[i] for i in range(len(PROMPTS))] == want


def test_an_interrupted_step_closes_the_session_and_nothing_else(text_lm: hybridlm.LM) -> None:
    want = text_lm.generate(PROMPTS, **SETTINGS)

    def interrupt(rows: Any, owners: list[Any]) -> Any:
        raise KeyboardInterrupt

    with text_lm.session() as session:
        for prompt in PROMPTS:
            session.submit(prompt, **SETTINGS)
        for _ in range(4):
            session.step()
        text_lm.engine.after_step = interrupt
        try:
            with pytest.raises(KeyboardInterrupt):
                session.step()
        finally:
            text_lm.engine.after_step = None
        assert session.busy, "a loop over steps must not end as if the requests had"
        with pytest.raises(RuntimeError, match="the session is closed, 5 requests have not ended"):
            session.step()
        with pytest.raises(RuntimeError, match="the session is closed"):
            session.submit("a")
        session.close()
        assert not session.busy
    assert text_lm.generate(PROMPTS, **SETTINGS) == want


@pytest.mark.parametrize("place", ["_take", "_take_prompts"])
def test_an_interrupt_after_a_wait_closes_the_session(
    text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The tokens of the step would be lost."""

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with text_lm.session() as session, monkeypatch.context() as patch:
        session.submit(PROMPTS[1], prompt_logprobs=1 if place == "_take_prompts" else None, **SETTINGS)
        patch.setattr(hybridlm.Session, place, interrupted)
        with pytest.raises(KeyboardInterrupt):
            while session.busy:
                session.step()
        with pytest.raises(RuntimeError, match="the session is closed, 1 requests have not ended"):
            session.step()
    assert not text_lm.engine.pool.owner.held


@pytest.mark.parametrize("place", ["new_rows", "compiled"])
def test_a_device_without_memory_closes_the_session_and_nothing_else(
    text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Allocation of a pool fails, or the dispatch of a step of an existing pool."""
    want = text_lm.generate(PROMPTS, **SETTINGS)
    if place == "new_rows":
        text_lm.engine._pool = None

    def full(*arguments: Any) -> Any:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes.")

    with text_lm.session() as session, monkeypatch.context() as patch:
        session.submit(PROMPTS[1], **SETTINGS)
        patch.setattr(text_lm.engine if place == "new_rows" else text_lm.engine.programs, place, full)
        with pytest.raises(jax.errors.JaxRuntimeError, match="Out of memory"):
            session.step()
        with pytest.raises(RuntimeError, match="the session is closed"):
            session.step()
    assert text_lm.generate(PROMPTS, **SETTINGS) == want


def test_an_exception_in_the_loop_over_a_stream_frees_the_model(text_lm: hybridlm.LM) -> None:
    want = text_lm.generate(PROMPTS, **SETTINGS)
    with pytest.raises(ZeroDivisionError):
        for event in text_lm.stream(PROMPTS, **SETTINGS):
            print(1 / (event.index - 2))
    assert text_lm.generate(PROMPTS, **SETTINGS) == want


def test_sessions_do_not_see_each_other(text_lm: hybridlm.LM) -> None:
    want = text_lm.generate(PROMPTS, **SETTINGS)
    scores = text_lm.score(PROMPTS)
    streams: list[list[hybridlm.Completion]] = [[], []]
    for first, other in zip(*(text_lm.stream(PROMPTS, **SETTINGS) for _ in range(2)), strict=True):
        for events, event in zip(streams, (first, other), strict=True):
            if event.completion is not None:
                events.append(event.completion)
        if first.index == 2:
            for got, expected in zip(text_lm.score(PROMPTS), scores, strict=True):
                assert got.logprobs.tobytes() == expected.logprobs.tobytes()
    for completions in streams:
        assert sorted(completions, key=lambda c: want.index(c)) == want


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 16, 32])
def test_distinct_prompts_equal_their_solo_runs(text_lm: hybridlm.LM, count: int) -> None:
    prompts = [[3 + (5 * i + 7 * j * j) % 90 for j in range(1 + 3 * i % 13)] for i in range(count)]
    for prompt, got in zip(prompts, text_lm.generate(prompts, **SETTINGS), strict=True):
        (want,) = text_lm.generate([prompt], **SETTINGS)
        equal = [a == b for a, b in zip(got.token_ids, want.token_ids, strict=True)]
        assert all(equal) or not near_tie_absent(text_lm, want, equal.index(False))


def test_wrong_requests_are_refused_and_queue_nothing(text_lm: hybridlm.LM) -> None:
    with text_lm.session() as session:
        with pytest.raises(ValueError, match="request 0: token id 97 at index 0 is outside"):
            session.submit([97])
        with pytest.raises(ValueError, match="max_tokens: expected"):
            session.submit([7], max_tokens=0)
        with pytest.raises(TypeError, match="priority: expected a whole number"):
            session.submit([7], priority=0.5)  # type: ignore[arg-type]  # wrong on purpose
        with pytest.raises(TypeError, match="n: no such argument"):
            session.submit([7], n=2)  # type: ignore[call-arg]  # wrong on purpose
        assert not session.busy
        assert session.submit([7], max_tokens=1) == 0


def test_integrity_sees_a_row_that_two_have(text_lm: hybridlm.LM) -> None:
    with text_lm.session() as session:
        for prompt in ("Ada", "b"):
            session.submit(prompt, **SETTINGS)
        session.step()
        first, second = session._scheduler.joined
        slot, second.slot = second.slot, first.slot
        with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.SHARED,)):
            session.check_integrity()
        second.slot = None
        with pytest.raises(SlotError, check=lambda error: error.ids == (SlotFault.NO_ROW,)):
            session.check_integrity()
        second.slot = slot
        session.check_integrity()


def test_a_bar_counts_the_prompts(text_lm: hybridlm.LM, capfd: pytest.CaptureFixture[str]) -> None:
    text_lm.generate(PROMPTS, max_tokens=2, progress=True)
    assert "5/5" in capfd.readouterr().err
    text_lm.generate(PROMPTS, max_tokens=2)
    assert capfd.readouterr().err == "", "nobody is looking"
