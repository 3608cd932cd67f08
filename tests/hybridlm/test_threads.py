"""Threads that use one model at the same time."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import hybridlm
import hybridlm.session

PROMPTS = [[5, 9, 3], [7, 2, 60, 8, 11, 12, 13], [4], [91, 4, 5, 6, 7, 8, 9, 10, 11]]
SETTINGS = {"lanes": 3, "context": 256, "dtype": "float32", "chunk": 5, "cache": 512, "prefix_cache": "4MB"}


@pytest.fixture(scope="module")
def lm(text_path: Path) -> Iterator[hybridlm.LM]:
    lm = hybridlm.load(text_path, **SETTINGS)
    lm.engine.checked = True
    yield lm


def generated(lm: hybridlm.LM, number: int) -> list[int]:
    return lm.generate([PROMPTS[number]], max_tokens=6 + 40 * (number % 2), ignore_eos=True)[0].token_ids


def scored(lm: hybridlm.LM, number: int) -> list[float]:
    return lm.score([PROMPTS[number] * 3])[0].logprobs[1:].tolist()


def test_threads_take_turns(lm: hybridlm.LM) -> None:
    """Generation and scoring in six threads give the numbers of one thread, with few pages and shared ones."""
    jobs = [(function, number) for _ in range(4) for number in range(len(PROMPTS)) for function in (generated, scored)]
    expected = [function(lm, number) for function, number in jobs]
    preemptions = lm.stats["preemptions"]
    with ThreadPoolExecutor(6) as threads:
        results = list(threads.map(lambda job: job[0](lm, job[1]), jobs))
    assert results == expected
    assert lm.stats["preemptions"] == preemptions, "a thread that waits for rows takes none from threads that compute"
    assert not lm.engine.pool.owner.held


def test_threads_step_one_session(lm: hybridlm.LM) -> None:
    """Each event is returned to one of the threads."""
    expected = [generated(lm, number) for number in range(len(PROMPTS))]
    ended = dict[int, list[int]]()

    def drain(session: hybridlm.Session) -> None:
        while session.busy:
            for event in session.step():
                if event.completion is not None:
                    ended[event.index] = event.completion.token_ids

    for _ in range(5):
        ended.clear()
        with lm.session() as session, ThreadPoolExecutor(3) as threads:
            for number, prompt in enumerate(PROMPTS):
                session.submit(prompt, max_tokens=6 + 40 * (number % 2), ignore_eos=True)
            for result in [threads.submit(drain, session) for _ in range(3)]:
                result.result()
        assert [ended[number] for number in range(len(PROMPTS))] == expected


def test_a_request_is_cancelled_while_another_thread_takes_its_token(
    lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, waiting = hybridlm.session.append_token, list[threading.Thread]()

    def cancelling(sequence: Any, *arguments: Any) -> None:
        append(sequence, *arguments)
        if sequence.request.index == 1 and len(sequence.generated) == 3:
            waiting.append(threading.Thread(target=session.cancel, args=[1]))
            waiting[0].start()
            waiting[0].join(0.2)

    monkeypatch.setattr(hybridlm.session, "append_token", cancelling)
    completions = dict[int, hybridlm.Completion]()
    with lm.session() as session:
        for prompt in PROMPTS[:2]:
            session.submit(prompt, max_tokens=30, ignore_eos=True)
        while session.busy:
            completions |= {event.index: event.completion for event in session.step() if event.completion}
            for thread in waiting:
                thread.join()
    assert completions[1].finish_reason == "cancelled" and 3 <= len(completions[1].token_ids) < 30
    assert len(completions[0].token_ids) == 30
