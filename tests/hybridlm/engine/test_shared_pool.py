"""Scoring, completions and sessions share one pool: nothing is lost, and no number depends on the others."""

import gc
from pathlib import Path
from typing import Any

import pytest
from random_traffic import finished, prompt

import hybridlm
from hybridlm.compiler.host import PageOwner
from hybridlm.engine import scheduler
from models import KV_BLOCK

PAGES, LANES = 5, 4
SETTINGS: dict[str, Any] = {
    "lanes": LANES, "context": 512, "dtype": "float32", "chunk": 32, "certify": "off", "cache": PAGES * KV_BLOCK,
}  # fmt: skip
PLAIN: dict[str, Any] = {"ignore_eos": True}
pytestmark = [
    pytest.mark.usefixtures("stored_steps"),
    pytest.mark.filterwarnings("ignore:.*was preempted after"),
]


@pytest.fixture(scope="module")
def lm(text_path: Path, stored_steps: None) -> hybridlm.LM:
    """Four lanes of four pages each, and five pages for all of them."""
    return hybridlm.load(text_path, **SETTINGS)


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences join with hardly more than their prompts, and decode after each step that reads."""
    monkeypatch.setattr(scheduler, "ROOM", 3)
    monkeypatch.setattr(scheduler, "MAX_PREFILL_RUN", 1)


def bits(scores: list[hybridlm.Score]) -> list[bytes]:
    return [score.logprobs.tobytes() for score in scores]


@pytest.mark.parametrize("by_session", [False, True])
@pytest.mark.parametrize("pages", [False, True])
def test_rows_and_pages_that_ctrl_c_took_from_their_sequence_are_free_again(
    lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch, by_session: bool, pages: bool
) -> None:
    """Ctrl-C between the allocation and the line that keeps it, more often than there are rows or pages."""
    texts, owner = [prompt(370, 5), prompt(40, 6)], PageOwner if pages else type(lm.engine.pool)
    want, acquire = bits(lm.score(texts)), owner.acquire

    def interrupted(*args: Any, **options: Any) -> None:
        acquire(*args, **options)
        raise KeyboardInterrupt

    for _ in range(LANES + 1):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(owner, "acquire", interrupted)
            lm.generate(texts, max_tokens=2, **PLAIN) if by_session else lm.score(texts)
        gc.collect()
        pool = lm.engine.pool
        pool.check_integrity()
        assert not pool.owner.held and pool.free_pages(0) == PAGES
        assert not lm.engine.interrupted, "later steps look for no lost rows"
    assert bits(lm.score(texts)) == want


@pytest.mark.slow
def test_a_call_scores_while_a_session_has_all_rows_and_pages(lm: hybridlm.LM) -> None:
    """Idle sequences give way, are computed again, and end as they do alone."""
    texts = [prompt(370, 5), prompt(40, 6), prompt(90, 7), [*prompt(90, 7), 4, 5, 6]]
    want, pool, preempted = bits(lm.score(texts)), lm.engine.pool, lm.stats["preemptions"]
    prompts = [prompt(100 + i, i) for i in range(LANES)]
    alone = [lm.generate([tokens], max_tokens=12, **PLAIN)[0].token_ids for tokens in prompts]
    with lm.session() as session:
        for tokens in prompts:
            session.submit(tokens, max_tokens=12, **PLAIN)
        while len(session._scheduler.decoding) < LANES:
            session.step()
        assert not pool.owner.free
        assert bits(lm.score(texts)) == want
        session.check_integrity()
        assert session._scheduler.waiting and lm.stats["preemptions"] > preempted
        completions = finished(session)
    assert [completions[i].token_ids for i in range(LANES)] == alone
    assert lm.engine.pool is pool and not pool.owner.held
    assert pool.page_owner is not None and pool.page_owner.free == PAGES


@pytest.mark.slow
def test_a_prompt_that_is_scored_is_preempted_and_keeps_its_bits(
    lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = prompt(370, 9)
    want = lm.score([long])[0].logprobs[1:].tolist()
    preempted, right = list[Any](), scheduler.Scheduler._preempt

    def recorded(self: scheduler.Scheduler, sequence: Any) -> None:
        preempted.append(sequence)
        right(self, sequence)

    monkeypatch.setattr(scheduler.Scheduler, "_preempt", recorded)
    with lm.session() as session:
        for i in range(2):
            session.submit(prompt(124, i), max_tokens=20, **PLAIN)
        while len(session._scheduler.decoding) < 2:
            session.step()
        session.submit(long, max_tokens=2, prompt_logprobs=0, **PLAIN)
        completions = finished(session)
    (text,) = {sequence for sequence in preempted if not hasattr(sequence, "request")}
    assert text.restarts
    logprobs = completions[2].prompt_logprobs
    assert logprobs is not None
    values = [next(iter(entry.values())) for entry in logprobs if entry is not None]
    assert values == want and len(completions[2].token_ids) == 2


def test_cancelled_prompts_give_rows_and_pages_back(lm: hybridlm.LM) -> None:
    """A prompt that is read, one after a shared prefix, and one that another request has, too."""
    stem, pool = prompt(200), lm.engine.pool
    with lm.session() as session:
        for tail in ([4, 5, 6], [7, 8, 9], [7, 8, 9]):
            session.submit([*stem, *tail], max_tokens=2, prompt_logprobs=0, **PLAIN)
        for _ in range(3):
            session.step()
        assert [text.index for text in session._scheduler.reading] == [None], "a shared prefix is read"
        session.cancel(0)
        session.cancel(1)
        session.check_integrity()
        assert session._scheduler.reading, "request 2 needs it"
        session.cancel(2)
        session.check_integrity()
        assert not session._scheduler.unfinished and not pool.owner.held
        assert pool.page_owner is not None and pool.page_owner.free == PAGES
        number = session.submit([*stem, 7, 8, 9], max_tokens=2, prompt_logprobs=0, **PLAIN)
        completions = finished(session)
    assert all(completions[i].finish_reason == "cancelled" for i in range(3))
    assert len(completions[number].prompt_logprobs or ()) == len(stem) + 3


def test_a_text_that_never_fits_is_refused_with_the_numbers(lm: hybridlm.LM) -> None:
    settings: dict[str, Any] = SETTINGS | {"cache": 2 * KV_BLOCK}
    few = hybridlm.load(lm.path, **settings)
    steps = few.stats["steps"]
    for call in (
        lambda: few.score([prompt(40), prompt(300)]),
        lambda: few.generate([prompt(300)], max_tokens=1, prompt_logprobs=0),
        lambda: few.embed([prompt(300)]),
    ):
        with pytest.raises(ValueError, match=r"300[^0-9].*256|256[^0-9].*300"):
            call()
    assert few.stats["steps"] == steps
    assert len(few.score([prompt(256)])[0].logprobs) == 256


def test_two_sessions_share_the_lanes(lm: hybridlm.LM) -> None:
    """The second one waits for the turn of the first, or takes its rows if it is idle."""
    prompts = [prompt(20 + i, i) for i in range(LANES)]
    want = [completion.token_ids for completion in lm.generate(prompts, max_tokens=30, **PLAIN)]
    with lm.session() as first, lm.session() as second:
        for session in (first, second):
            for tokens in prompts:
                session.submit(tokens, max_tokens=30, **PLAIN)
        while len(first._scheduler.decoding) < LANES:
            first.step()
        before = lm.stats["preemptions"]
        for _ in range(3):
            first.step()
            second.step()
        assert lm.stats["preemptions"] == before and not second._scheduler.joined
        results = finished(second)
        assert lm.stats["preemptions"] > before
        assert [results[i].token_ids for i in range(LANES)] == want
        results = finished(first)
    assert [results[i].token_ids for i in range(LANES)] == want


def test_a_lost_pool_is_read_again(lm: hybridlm.LM) -> None:
    """A call that is interrupted inside a step takes the rows of an open session, which goes on."""
    (want,) = lm.generate([prompt(50)], max_tokens=10, **PLAIN)

    def interrupted(rows: Any, owners: Any) -> Any:
        raise KeyboardInterrupt

    with lm.session() as session:
        session.submit(prompt(50), max_tokens=10, **PLAIN)
        for _ in range(6):
            session.step()
        pool = lm.engine.pool
        lm.engine.after_step = interrupted
        try:
            with pytest.raises(KeyboardInterrupt):
                lm.score([prompt(9)])
        finally:
            lm.engine.after_step = None
        assert pool.arrays is None
        assert finished(session)[0].token_ids == want.token_ids
    assert lm.engine.pool is not pool and not lm.engine.pool.owner.held


def test_a_session_that_was_not_closed_gives_its_rows_back(lm: hybridlm.LM) -> None:
    session = lm.session()
    session.submit(prompt(20), max_tokens=9, **PLAIN)
    session.step()
    assert len(lm.engine.pool.owner.held) == 1
    del session
    gc.collect()
    assert not lm.engine.pool.owner.held and not len(lm.engine.queues)


def test_an_iterator_collected_within_a_turn_gives_its_rows_back_after_it(lm: hybridlm.LM) -> None:
    """The collector may run while another queue chooses among the rows."""
    stream = lm.stream([prompt(20)], max_tokens=9, **PLAIN)
    next(stream)
    pool = lm.engine.pool
    with scheduler.TURN_LOCK:
        stream.close()
        assert len(pool.owner.held) == 1
    assert not lm.engine.pool.owner.held and lm.engine.pool is pool
    assert len(lm.generate([prompt(20)], max_tokens=9, **PLAIN)[0].token_ids) == 9
