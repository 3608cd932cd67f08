"""Thousands of random schedules on the real scheduler, rows and pages, with a model of tokens alone.

Every completion and score equals a function of its own tokens, and every step finds in rows and pages exactly the
tokens of its sequences. Requests join and are cancelled, draft, are preempted and share pages; other sessions, scores
and prefixes have turns between; pools are lost.
"""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from host_model import HostModel, continued, following, logprob

import hybridlm
from hybridlm import Session
from hybridlm.engine import scheduler
from hybridlm.engine.speculation import Speculation
from models import KV_BLOCK

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*was preempted after")]
CHUNK, DRAFTS, CONTEXT = 32, 3, 512
LENGTHS = (
    1, 2, DRAFTS, DRAFTS + 1, CHUNK - 1, CHUNK, CHUNK + 1, 100, KV_BLOCK - 1, KV_BLOCK, KV_BLOCK + 1, 2 * KV_BLOCK,
    2 * KV_BLOCK + 1, 370,
)  # fmt: skip
DISTRIBUTIONS: dict[str, tuple[int, ...]] = {
    "all lengths": LENGTHS,
    "short": (1, 2, 3, 5, 9),
    "long": (300, 370, 400, 5),
    "equal": (120,),
    "around pages": (KV_BLOCK - 2, KV_BLOCK - 1, KV_BLOCK, KV_BLOCK + 1, 2 * KV_BLOCK),
}


@pytest.fixture(autouse=True)
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences join with hardly more than their prompts; every draft is verified."""
    monkeypatch.setattr(scheduler, "ROOM", 3)
    monkeypatch.setattr(Speculation, "always", True)


def host_lm(path: Path, pages: int, **options: Any) -> hybridlm.LM:
    settings: dict[str, Any] = {"lanes": 4, "context": CONTEXT, "chunk": CHUNK, "draft_tokens": DRAFTS} | options
    lm = hybridlm.load(path, dtype="float32", certify="off", cache=pages * KV_BLOCK, progress=False, **settings)
    HostModel(lm.engine)
    return lm


class Drafter:
    """Drafts right tokens, and wrong ones after some of them."""

    def __init__(self, rng: random.Random):
        self._random = rng

    def propose(self, token_ids: Any, k: int) -> list[int]:
        """Return at most k tokens."""
        tokens, right = list(token_ids), self._random.randrange(k + 1)
        for i in range(k):
            tokens.append(following(tokens) if i < right else 70 + i)
        return tokens[len(token_ids) : len(token_ids) + self._random.randrange(k + 1)]


class Schedule:
    """Random requests and calls in up to three sessions of one model.

    Args:
        lm: the model, with nothing running.
        lengths: of prompts.
        seed: of all choices.

    Attributes:
        events: counts of what happened.
    """

    def __init__(self, lm: hybridlm.LM, lengths: tuple[int, ...], seed: int):
        self.lm, self._lengths, self._random = lm, lengths, random.Random(seed)
        self._stems = [self._tokens(400) for _ in range(2)]
        self.events: Counter[str] = Counter()
        self._expected: dict[tuple[int, int], tuple[list[int], list[int], bool]] = {}
        self._ended: dict[tuple[int, int], hybridlm.Completion] = {}

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(3, 90) for _ in range(count)]

    def _prompt(self) -> list[int]:
        length = self._random.choice(self._lengths)
        own, shared = self._tokens(length), self._random.choice((0, 0, length, length - 1, length // 2, KV_BLOCK))
        return (self._random.choice(self._stems)[: max(shared, 0)] + own)[:length]

    def run(self, requests: int) -> Counter[str]:
        """Run requests to their ends, and compare them."""
        rng, before = self._random, Counter(self.lm.stats)
        drafter: Any = Drafter(rng)
        sessions = [self.lm.session(speculate=rng.choice((None, drafter))) for _ in range(rng.choice((1, 1, 2, 3)))]
        todo, steps = requests, 0
        while todo or any(session.busy for session in sessions):
            number = rng.randrange(len(sessions))
            session = sessions[number]
            while todo and rng.random() < 0.3:
                self._submit(number, session)
                todo -= 1
            if session._alive and rng.random() < 0.03:
                session.cancel(rng.choice(list(session._alive)))
                self.events["cancelled"] += 1
            if rng.random() < 0.01:
                self._score()
            if rng.random() < 0.003:
                self.lm.engine.pool.take()
                self.events["lost pools"] += 1
            for _ in range(rng.choice((1, 1, 1, 12))):
                self._step(number, session)
            steps += 1
            assert steps < 300 * requests + 3000, f"the requests of {sessions} never end"
        for session in sessions:
            session.close()
        assert self._ended.keys() == self._expected.keys()
        for key, completion in self._ended.items():
            self._compare(completion, *self._expected[key])
        after = Counter(self.lm.stats)
        names = ("preemptions", "drafted_tokens", "accepted_tokens", "prefix_hits", "generated_tokens")
        self.events += Counter({name: after[name] - before[name] for name in names})
        self._all_is_given_back()
        return self.events

    def _submit(self, number: int, session: Session) -> None:
        rng, engine = self._random, self.lm.engine
        prompt, prompt_logprobs = self._prompt(), rng.random() < 0.15
        room = min(CONTEXT - len(prompt), engine.longest - len(prompt) + 1)
        limit = min(rng.choice((1, 2, DRAFTS, DRAFTS + 1, 10, 40, 140)), room)
        stops = rng.sample(range(3, 63), rng.choice((0, 0, 3)))
        index = session.submit(
            prompt, max_tokens=limit, stop=stops, ignore_eos=True, priority=rng.choice((0, 0, 0, 1)),
            prompt_logprobs=0 if prompt_logprobs else None,
        )  # fmt: skip
        self._expected[number, index] = prompt, continued(prompt, limit, stops), prompt_logprobs

    def _step(self, number: int, session: Session) -> None:
        for event in session.step():
            if event.completion is not None:
                self._ended[number, event.index] = event.completion
        session.check_integrity()
        pages = self.lm.engine.pool.page_owner
        self.events["shared pages"] += 0 if pages is None else int((pages.counts() > 1).sum())

    def _score(self) -> None:
        texts = [self._prompt()[: self.lm.engine.longest] for _ in range(self._random.randrange(1, 7))]
        for text, score in zip(texts, self.lm.score(texts), strict=True):
            assert score.logprobs[1:].tolist() == _logprobs(text)
            self.events["scores"] += 1

    def _compare(
        self, completion: hybridlm.Completion, prompt: list[int], tokens: list[int], prompt_logprobs: bool
    ) -> None:
        if completion.finish_reason == "cancelled":
            assert completion.token_ids == tokens[: len(completion.token_ids)]
            return
        assert completion.token_ids == tokens
        if prompt_logprobs:
            assert completion.prompt_logprobs is not None
            values = [next(iter(entry.values())) for entry in completion.prompt_logprobs if entry is not None]
            assert values == _logprobs(prompt)
            self.events["prompts scored"] += 1

    def _all_is_given_back(self) -> None:
        """Check that no row has a holder, and without cached states no page."""
        cache = self.lm.engine.prefix_cache
        if cache is not None:
            cache.check_integrity()
            self.lm.engine.clear_prefix_cache()
        pool = self.lm.engine.pool
        assert not pool.owner.held
        assert sum(map(pool.free_pages, range(pool.devices))) == max(0, pool.pages - pool.devices)


def _logprobs(text: list[int]) -> list[float]:
    return [logprob(text[:i], text[i]) for i in range(1, len(text))]


OFTEN = ("preemptions", "accepted_tokens", "cancelled", "scores", "prompts scored")
"""Events of every model's schedules."""


def run_all(lm: hybridlm.LM, lengths: tuple[int, ...], seeds: range, requests: int = 16) -> Counter[str]:
    events = Counter[str]()
    for seed in seeds:
        events += Schedule(lm, lengths, seed).run(requests)
    return events


@pytest.mark.parametrize("lengths", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_few_pages(text_path: Path, lengths: tuple[int, ...]) -> None:
    events = run_all(host_lm(text_path, pages=5), lengths, range(6))
    rare = [name for name in (*OFTEN, "lost pools") if not events[name]]
    assert set(rare) <= ({"preemptions", "lost pools"} if max(lengths) < 10 else {"lost pools"}), events


@pytest.mark.parametrize("lengths", ("all lengths", "around pages"))
def test_few_pages_with_a_prefix_cache(text_path: Path, lengths: str) -> None:
    """Rows share pages; states go to the host and come back, or are dropped."""
    events = Counter[str]()
    for host in ("300kB", 0):
        lm = host_lm(text_path, pages=6, prefix_cache={"device": "600kB", "host": host})
        events += run_all(lm, DISTRIBUTIONS[lengths], range(6))
    assert all(events[name] for name in (*OFTEN, "shared pages", "prefix_hits")), events


def test_two_devices(text_path: Path) -> None:
    """Rows and pages are split over the devices of a mesh; a row shares pages of its own device."""
    lm = host_lm(
        text_path, pages=10, lanes=8, mesh=hybridlm.mesh(data=2), prefix_cache={"device": "600kB", "host": "300kB"}
    )
    events = run_all(lm, LENGTHS, range(6), requests=24)
    assert all(events[name] for name in (*OFTEN, "shared pages", "prefix_hits")), events


def test_a_sequence_without_a_step_is_preempted(text_path: Path) -> None:
    """It has no state for the prefix cache."""
    lm = host_lm(text_path, pages=9, lanes=8, prefix_cache="600kB")
    prompts = [[5 + number] * 40 for number in range(8)]
    with lm.session() as idle, lm.session() as active:
        for prompt in prompts:
            idle.submit(prompt, max_tokens=4, ignore_eos=True)
        idle.step()
        assert not idle._scheduler.prefilling[-1].stepped
        active.submit([9], max_tokens=4, ignore_eos=True)
        while active.busy:
            active.step()
        assert lm.stats["preemptions"] == 1
        results = dict[int, list[int]]()
        while idle.busy:
            results |= {event.index: event.completion.token_ids for event in idle.step() if event.completion}
    assert [results[index] for index in range(8)] == [continued(prompt, 4, ()) for prompt in prompts]


@pytest.mark.long
@pytest.mark.parametrize("lengths", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_many_schedules(text_path: Path, lengths: tuple[int, ...]) -> None:
    for pages, cache in ((4, None), (5, "300kB"), (7, {"device": "600kB", "host": 0})):
        run_all(host_lm(text_path, pages=pages, prefix_cache=cache), lengths, range(100, 160))
