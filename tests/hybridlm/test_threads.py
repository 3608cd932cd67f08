"""Threads that use one model at the same time."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from text_checkpoint import write_text_checkpoint

import hybridlm

PROMPTS = [[5, 9, 3], [7, 2, 60, 8, 11, 12, 13], [4], [91, 4, 5, 6, 7, 8, 9, 10, 11]]
SETTINGS = {"lanes": 3, "context": 256, "dtype": "float32", "chunk": 5, "cache": 512, "prefix_cache": "4MB"}


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hybridlm.LM]:
    lm = hybridlm.load(write_text_checkpoint(tmp_path_factory.mktemp("text")), **SETTINGS)
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
