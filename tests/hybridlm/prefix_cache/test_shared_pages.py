"""Full pages of cached states are shared with rows: nothing is copied, no holder writes them, all are given back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kept_states import empty_cache
from patched_functions import Call, record_calls
from random_traffic import finished

import hybridlm
from hybridlm.prefix_cache.cache import PrefixCache
from hybridlm.prefix_cache.moves import RowMoves
from ir_passes import SlotError, SlotFault
from models import KV_BLOCK

SETTINGS: dict[str, Any] = {"lanes": 4, "context": 512, "dtype": "float32", "chunk": 32, "certify": "off"}
CERTIFIED: dict[str, Any] = SETTINGS | {"certify": "error"}
FREE: dict[str, Any] = {"ignore_eos": True}
PAGES = 5
"""Pages of the model with few pages, for four rows of up to four pages."""
pytestmark = [pytest.mark.usefixtures("stored_steps"), pytest.mark.filterwarnings("ignore:.*was preempted after")]


def ids(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 90, count).tolist()


@pytest.fixture(scope="module")
def cold(text_path: Path, stored_steps: None) -> hybridlm.LM:
    return hybridlm.load(text_path, **SETTINGS)


@pytest.fixture(scope="module")
def loaded(cold: hybridlm.LM) -> hybridlm.LM:
    return hybridlm.load(cold.path, prefix_cache="4MB", **SETTINGS)


@pytest.fixture(scope="module")
def loaded_small(cold: hybridlm.LM) -> hybridlm.LM:
    return hybridlm.load(cold.path, prefix_cache="4MB", cache=PAGES * KV_BLOCK, **SETTINGS)


@pytest.fixture
def lm(loaded: hybridlm.LM) -> Iterator[hybridlm.LM]:
    """The model with an empty cache."""
    yield empty_cache(loaded, "4MB")
    empty_cache(loaded, "4MB")
    assert_all_free(loaded)


@pytest.fixture
def few_pages(loaded_small: hybridlm.LM) -> Iterator[hybridlm.LM]:
    yield empty_cache(loaded_small, "4MB")
    empty_cache(loaded_small, "4MB")
    assert_all_free(loaded_small)


def assert_all_free(lm: hybridlm.LM) -> None:
    """Check that no page has a holder."""
    pool = lm.engine.pool
    assert sum(map(pool.free_pages, range(pool.devices))) == pool.pages - pool.devices


def cache_of(lm: hybridlm.LM) -> PrefixCache:
    assert lm.engine.prefix_cache is not None
    return lm.engine.prefix_cache


def alone(lm: hybridlm.LM, prompt: list[int], count: int) -> list[int]:
    return lm.generate([prompt], max_tokens=count, **FREE)[0].token_ids


def pool_of(session: hybridlm.Session) -> Any:
    pool = session._scheduler._pool
    assert pool is not None
    return pool


def pages_of(session: hybridlm.Session, index: int) -> list[int]:
    """The pages of a request's row, in the order of its positions."""
    scheduler: Any = session._scheduler
    (sequence,) = [sequence for sequence in scheduler.joined if sequence.request.index == index]
    pool = pool_of(session)
    (row,) = pool.rows_of([sequence.slot])
    return [page for page in pool._table[row].tolist() if page]


def numbers_in(session: hybridlm.Session, pages: list[int]) -> list[bytes]:
    """The bytes of some pages, of every KV cache."""
    arrays = jax.tree.leaves(session._engine.programs.structure.arrays)
    leaves = zip(jax.tree.leaves(pool_of(session).look()), arrays, strict=True)
    return [np.asarray(leaf)[pages].tobytes() for leaf, array in leaves if array.grows]


def decodes(session: hybridlm.Session, index: int) -> bool:
    return any(sequence.request.index == index for sequence in session._scheduler.decoding)


MOVE = "hybridlm.programs.runner.Runner.move"


def restored_pages(calls: list[Call]) -> list[int]:
    """Return the first place of each move of keys and values into a row."""
    moves = [call.args[1] for call in calls]
    return [int(move.maps[2][0]) for move in moves if move.shape.part == "span" and not move.shape.kept]


COMMON = ids(300, 1)
FIRST, SECOND = COMMON, [*COMMON[:288], *ids(20, 2)]
"""Prompts with two full pages and a quarter in common; chunks end at 288."""


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_two_sequences_have_the_pages_of_their_common_prefix(
    cold: hybridlm.LM, lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch, first_ends_first: bool
) -> None:
    """The second joins while the first decodes, and one of them ends while the other goes on."""
    counts = (12, 40) if first_ends_first else (40, 6)
    want = [alone(cold, prompt, count) for prompt, count in zip((FIRST, SECOND), counts, strict=True)]
    with lm.session() as session:
        session.submit(FIRST, max_tokens=counts[0], **FREE)
        while not decodes(session, 0):
            session.step()
        calls, shared = record_calls(monkeypatch, MOVE), pages_of(session, 0)[:2]
        numbers = numbers_in(session, shared)
        session.submit(SECOND, max_tokens=counts[1], **FREE)
        while not decodes(session, 1):
            session.step()
        first, second = pages_of(session, 0), pages_of(session, 1)
        assert first[:2] == second[:2] == shared and not set(first[2:]) & set(second[2:])
        assert restored_pages(calls) == [32], "full pages are not copied"
        completions = finished(session)
        assert numbers_in(session, shared) == numbers, "no step has written them"
    assert [completions[index].token_ids for index in (0, 1)] == want
    assert lm.stats["prefix_hits"] >= 1


@pytest.mark.parametrize("length", [127, 128, 129, 255, 256, 257])
def test_a_prompt_continues_a_state_near_the_end_of_a_page(cold: hybridlm.LM, lm: hybridlm.LM, length: int) -> None:
    """States of whole pages, one position fewer and one more; the last page is copied unless it is full."""
    begins = ids(length, length)
    prompts = [begins, [*begins, 5], [*begins, 6, 7], [*begins[: length - 1], 8, 9], [*begins, 5, 6]]
    for prompt in prompts:
        assert alone(lm, prompt, 6) == alone(cold, prompt, 6)
        cache_of(lm).check_integrity()


def test_nothing_outside_its_pages_reaches_a_sequence(cold: hybridlm.LM, lm: hybridlm.LM) -> None:
    """All pages that its table does not name hold NaN from its first step on, the pages of other sequences too."""
    want = alone(cold, SECOND, 8)
    alone(lm, FIRST, 2)
    with lm.session() as session:
        session.submit(SECOND, max_tokens=8, **FREE)

        def poison(rows: Any, owners: list[Any]) -> Any:
            (sequence,) = session._scheduler.joined
            assert sequence.slot is not None
            pages = [pool_of(session).page(sequence.slot, block) for block in range(-(-sequence.consumed // KV_BLOCK))]
            others = np.setdiff1d(np.arange(1, pool_of(session).pages), pages)
            arrays = lm.engine.programs.structure.arrays.layers
            layers = jax.tree.map(
                lambda leaf, array: leaf.at[others].set(jnp.nan) if array.grows else leaf, rows.layers, arrays
            )
            return rows._replace(layers=layers)

        saved, lm.engine.after_step = lm.stats["prefix_tokens_saved"], poison
        try:
            session.step()
            pages = pages_of(session, 0)
            completions = finished(session)
        finally:
            lm.engine.after_step = None
    assert completions[0].token_ids == want and len(pages) == 3
    assert lm.stats["prefix_tokens_saved"] - saved == 288
    cache_of(lm).clear()  # cached pages outside of the table hold NaN now


def test_a_step_that_would_write_a_shared_page_is_refused(lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: the last page of a state is shared before it is full."""
    monkeypatch.setattr(RowMoves, "full_pages", lambda self, position: -(-position // KV_BLOCK))
    with pytest.raises(SlotError, match="would be written and has 2 holders", check=_shared), lm.session() as session:
        session.submit(FIRST, max_tokens=4, **FREE)
        finished(session)
    cache_of(lm).clear()


def _shared(error: SlotError) -> bool:
    return error.ids == (SlotFault.SHARED,)


def test_cached_pages_are_evicted_before_a_sequence_is_preempted(cold: hybridlm.LM, few_pages: hybridlm.LM) -> None:
    """Five pages: each prompt leaves two, and the next one needs four; the oldest go to the host and come back."""
    prompts = [ids(290, seed) for seed in range(4)]
    want = [alone(cold, prompt, 100) for prompt in prompts]
    before = few_pages.stats
    for prompt, expected in zip(prompts, want, strict=True):
        assert alone(few_pages, prompt, 100) == expected
        cache_of(few_pages).check_integrity()
    assert few_pages.stats["preemptions"] == before["preemptions"]
    assert few_pages.stats["prefix_spills"] >= 4 and few_pages.stats["prefix_states"] >= 4
    continued = [*prompts[0], 7]
    assert alone(few_pages, continued, 5) == alone(cold, continued, 5)
    assert few_pages.stats["prefix_hits"] > before["prefix_hits"]


def test_without_room_on_the_host_states_are_dropped(cold: hybridlm.LM, few_pages: hybridlm.LM) -> None:
    empty_cache(few_pages, {"device": "4MB", "host": 0})
    for seed in range(4):
        prompt = ids(290, seed)
        assert alone(few_pages, prompt, 100) == alone(cold, prompt, 100)
        cache_of(few_pages).check_integrity()
    assert few_pages.stats["prefix_evictions"] > 0 == few_pages.stats["prefix_spills"]


def test_a_state_that_takes_the_last_room_is_given_up(cold: hybridlm.LM, few_pages: hybridlm.LM) -> None:
    """The prompt needs all pages but one; a page of the state that would be copied in part takes that and another."""
    common = ids(250, 9)
    alone(few_pages, [*common, *ids(200, 10)], 2)
    prompt = [*common[:200], *ids(250, 11)]
    for _ in range(2):
        assert alone(few_pages, prompt, 40) == alone(cold, prompt, 40)
        cache_of(few_pages).check_integrity()


def test_sequences_with_shared_pages_are_preempted(
    cold: hybridlm.LM, few_pages: hybridlm.LM, little_room: None
) -> None:
    """Two shared pages and two for each of three sequences are more than there are."""
    prompts = [[*COMMON[:288], *ids(10 + 30 * number, number)] for number in range(3)]
    want = [alone(cold, prompt, 90) for prompt in prompts]
    preemptions = few_pages.stats["preemptions"]
    with few_pages.session() as session:
        for prompt in prompts:
            session.submit(prompt, max_tokens=90, **FREE)
        completions = finished(session)
    assert [completions[index].token_ids for index in range(3)] == want
    assert few_pages.stats["preemptions"] > preemptions


def test_sessions_share_pages(cold: hybridlm.LM, lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the positions of the last page are copied."""
    with lm.session() as first, lm.session() as second:
        first.submit(FIRST, max_tokens=30, **FREE)
        while not decodes(first, 0):
            first.step()
        calls = record_calls(monkeypatch, MOVE)
        second.submit(SECOND, max_tokens=8, **FREE)
        completions = finished(second)
        assert restored_pages(calls)[:1] == [32]
        assert completions[0].token_ids == alone(cold, SECOND, 8)
        assert finished(first)[0].token_ids == alone(cold, FIRST, 30)


def test_pages_of_lost_rows_are_forgotten(cold: hybridlm.LM, lm: hybridlm.LM) -> None:
    alone(lm, FIRST, 2)
    with lm.session() as session:
        session.submit(SECOND, max_tokens=20, **FREE)
        session.step()
        lm.engine.pool.take()
    assert alone(lm, [5], 1) == alone(cold, [5], 1)
    with cache_of(lm).pinned(SECOND, None) as snapshot:
        assert snapshot is None
    cache_of(lm).check_integrity()
    assert alone(lm, SECOND, 4) == alone(cold, SECOND, 4)


def test_scores_and_prefixes_leave_cached_pages_alone(cold: hybridlm.LM, few_pages: hybridlm.LM) -> None:
    """A scoring pool is another pool; a prefix evicts what it has no room beside."""
    alone(few_pages, FIRST, 2)
    np.testing.assert_array_equal(few_pages.score([FIRST])[0].logprobs, cold.score([FIRST])[0].logprobs)
    hits = few_pages.stats["prefix_hits"]
    assert alone(few_pages, SECOND, 4) == alone(cold, SECOND, 4)
    assert few_pages.stats["prefix_hits"] == hits + 1
    prefix = few_pages.prefix(ids(500, 12))
    (completion,) = few_pages.generate([[5, 6]], prefix=prefix, max_tokens=4, **FREE)
    assert completion.token_ids == alone(cold, [*ids(500, 12), 5, 6], 4)
    cache_of(few_pages).check_integrity()


@pytest.mark.slow
def test_on_a_mesh_a_row_shares_the_pages_of_its_device(cold: hybridlm.LM) -> None:
    """Two rows on each of two devices: the third sequence gets copies, unless a row is free next to the pages."""
    split = hybridlm.load(cold.path, mesh=hybridlm.mesh(data=2), prefix_cache="4MB", **SETTINGS)
    prompts = [[*COMMON[:288], *ids(5, number)] for number in range(4)]
    with split.session() as session:
        for prompt in prompts:
            session.submit(prompt, max_tokens=12, **FREE)
        while not all(decodes(session, index) for index in range(4)):
            session.step()
        first = sorted(tuple(pages_of(session, index)[:2]) for index in range(4))
        assert first[0] == first[1] or first[1] == first[2] or first[2] == first[3]
        completions = finished(session)
    assert [completions[index].token_ids for index in range(4)] == [alone(cold, prompt, 12) for prompt in prompts]


@pytest.mark.slow
def test_a_step_is_certified_for_shared_pages(cold: hybridlm.LM) -> None:
    """The certificate states what the host promises about them."""
    lm = hybridlm.load(cold.path, prefix_cache="4MB", **CERTIFIED)
    prompts = [FIRST, SECOND]
    assert [alone(lm, prompt, 4) for prompt in prompts] == [alone(cold, prompt, 4) for prompt in prompts]
    certificate = lm.engine.program(lm.engine.shape("generate", 1, 1)).certificate.report()
    assert "Pages that several lanes name are read only" in " ".join(certificate.split())
    assert lm.stats["prefix_hits"] == 1


@pytest.mark.slow
def test_the_sanitizer_finds_nothing_wrong(cold: hybridlm.LM) -> None:
    sanitized = hybridlm.load(cold.path, sanitize=True, prefix_cache="4MB", **CERTIFIED)
    with sanitized.session() as session:
        for prompt in (FIRST, SECOND):
            session.submit(prompt, max_tokens=12, **FREE)
        completions = finished(session)
    assert [completions[index].token_ids for index in range(2)] == [alone(cold, each, 12) for each in (FIRST, SECOND)]
    assert sanitized.stats["prefix_hits"] == 1
