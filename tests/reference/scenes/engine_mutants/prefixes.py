"""Cached prompt states: taken, labelled, shared, moved and restored by wrong rules."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from engine_mutants.mutant import EngineMutant, Finder, replaced

from hybridlm import Snapshot
from hybridlm.engine.engine import Engine
from hybridlm.engine.scheduler import Scheduler
from hybridlm.prefix_cache import moves
from hybridlm.prefix_cache.cache import PrefixCache
from hybridlm.prefix_cache.memory import CacheMemory
from hybridlm.prefix_cache.moves import RowMoves
from hybridlm.requests.sequence import ActiveSequence
from hybridlm.rows.cached_buffers import CachedBuffers
from hybridlm.rows.pool import RowPool
from models import KV_BLOCK, kv_blocks


def kept(patch: pytest.MonkeyPatch, change) -> None:
    """Change buffers copied out of a row: `change(part, CachedBuffers)`."""
    right = RowMoves._copy

    def copy(self: RowMoves, part: Any, *arguments: Any) -> CachedBuffers:
        buffers = right(self, part, *arguments)
        change(part, buffers)
        return buffers

    patch.setattr(RowMoves, "_copy", copy)


def restored(patch: pytest.MonkeyPatch, change) -> None:
    """A part is put back otherwise: `change(put_back, part, CachedBuffers, maps)`."""
    right = RowMoves._restore

    def restore(self: RowMoves, buffers: CachedBuffers, part: Any, pool: Any, maps: Any, mark: Any = None) -> None:
        change(lambda buffers, maps: right(self, buffers, part, pool, maps, mark), part, buffers, maps)

    patch.setattr(RowMoves, "_restore", restore)


@replaced(RowMoves, "_copy")
def of_the_first_row(right: Any, self: RowMoves, part: Any, pool: RowPool, maps: Any, *about: Any) -> CachedBuffers:
    """Every state is copied from the row of the step's first lane."""
    row, *rest = maps
    return right(self, part, pool, (row * 0 if part == "state" else row, *rest), *about)


@replaced(Scheduler, "_cache_state")
def labelled_as_the_whole_prompt(_: Any, self: Scheduler, sequence: ActiveSequence, pool: RowPool) -> None:
    assert self._engine.prefix_cache is not None and sequence.slot is not None
    self._engine.prefix_cache.keep(pool, sequence.slot, sequence.request.prompt, owner=sequence)


@replaced(Scheduler, "_cache_state")
def counted_one_ahead(right: Any, self: Scheduler, sequence: ActiveSequence, pool: RowPool) -> None:
    """A state has the next step's counter, if the step reads one token."""
    ahead = sequence.consumed < len(sequence.request.prompt)
    sequence.consumed += ahead
    right(self, sequence, pool)
    sequence.consumed -= ahead


def shared_state_written(patch: pytest.MonkeyPatch) -> None:
    """Write a sequence's next state over the cached state that it continued."""
    gone_on_from: dict[Any, CachedBuffers] = {}
    take, restore = RowMoves.take, RowMoves.restore

    def taken(self: RowMoves, pool: Any, slot: Any, tokens: Any, owner: Any, spans: Any = (), **how: Any) -> Snapshot:
        snapshot = take(self, pool, slot, tokens, owner, spans, **how)
        if owner in gone_on_from and snapshot.state is not None and gone_on_from[owner].on_device:
            gone_on_from[owner].arrays = snapshot.state.arrays
        return snapshot

    def put_back(self: RowMoves, snapshot: Snapshot, pool: Any, slot: Any, tokens: Any, owner: Any) -> int:
        if snapshot.state is not None:
            gone_on_from[owner] = snapshot.state
        return restore(self, snapshot, pool, slot, tokens, owner)

    patch.setattr(RowMoves, "take", taken)
    patch.setattr(RowMoves, "restore", put_back)


def keys_without_the_state(patch: pytest.MonkeyPatch) -> None:
    restored(patch, lambda put, part, buffers, maps: put(buffers, maps) if part == "span" else None)


def state_without_the_keys(patch: pytest.MonkeyPatch) -> None:
    restored(patch, lambda put, part, buffers, maps: put(buffers, maps) if part == "state" else None)


def another_size_of_spans(patch: pytest.MonkeyPatch) -> None:
    """Positions are counted in spans of another size."""

    def change(put: Any, part: Any, buffers: CachedBuffers, maps: tuple[Any, ...]) -> None:
        if part == "span":
            *others, count = maps
            maps = *others, count // 8 * 8
        put(buffers, maps)

    restored(patch, change)


@replaced(moves, "buffers_by_block")
def first_of_a_page(_: Any, spans: Any) -> dict[int, CachedBuffers]:
    """Read a page from the first span that has a part of it."""
    return {buffers.position // KV_BLOCK: buffers for buffers, _, _ in reversed(spans)}


def partly_filled_page_shared(patch: pytest.MonkeyPatch) -> None:
    """Share the last page of a row, too, which its next step writes."""
    patch.setattr(RowMoves, "full_pages", lambda self, position: kv_blocks(position))


def page_not_held(patch: pytest.MonkeyPatch) -> None:
    """A cached state names a page of its row without a right to it."""
    right = RowPool.keep_page

    def keep(self: RowPool, slot: Any, block: int) -> Any:
        page = right(self, slot, block)
        self.drop_page(page)
        return page

    patch.setattr(RowMoves, "full_pages", lambda self, position: position // KV_BLOCK or 1)
    patch.setattr(RowPool, "keep_page", keep)


@replaced(RowMoves, "restore")
def rounded_to_chunks(right: Any, self: RowMoves, *arguments: Any, **options: Any) -> int:
    """The prompt continues at the last whole chunk, on a later token's state."""
    return right(self, *arguments, **options) // 5 * 5


def ring_of_four(patch: pytest.MonkeyPatch) -> None:
    """States are in a ring of four; the fifth overwrites the first."""
    ring: list[CachedBuffers] = []

    def change(part: Any, buffers: CachedBuffers) -> None:
        if part == "state":
            for older in ring[-4:-3]:
                older.arrays = buffers.arrays if older.on_device else older.arrays
            ring.append(buffers)

    kept(patch, change)


def never_written(patch: pytest.MonkeyPatch) -> None:
    """Every second copy into the cache is skipped, and the state is used anyway."""
    count = iter(range(10**9))

    def change(part: Any, buffers: CachedBuffers) -> None:
        if part == "state" and next(count) % 2:
            buffers.arrays = tuple(jnp.zeros_like(array) for array in buffers.arrays)

    kept(patch, change)


def layout_left_behind(patch: pytest.MonkeyPatch) -> None:
    """Keep states with their heads in another order than the rows, unmarked."""

    def change(part: Any, buffers: CachedBuffers) -> None:
        buffers.arrays = tuple(
            array[:, ::-1] if array.ndim == 4 and part == "state" else array for array in buffers.arrays
        )

    kept(patch, change)


def before_the_step(patch: pytest.MonkeyPatch) -> None:
    """A state is copied from the rows before the step that its label counts."""
    pools: dict[RowPool, Any] = {}
    run, look = Engine.run, RowPool.look

    def wrong_run(self: Engine, shape: Any, pool: RowPool, *arguments: Any, **options: Any) -> Any:
        pools[pool] = jax.tree.map(jnp.copy, look(pool))
        return run(self, shape, pool, *arguments, **options)

    right = RowMoves._copy

    def copy(self: RowMoves, *arguments: Any) -> CachedBuffers:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(RowPool, "look", lambda pool: pools[pool])
            return right(self, *arguments)

    patch.setattr(Engine, "run", wrong_run)
    patch.setattr(RowMoves, "_copy", copy)


def one_span_for_all(patch: pytest.MonkeyPatch) -> None:
    """Page in the last paged-out state, whichever state is requested."""
    last: list[tuple[Any, ...]] = []
    restore, evict_one = CacheMemory.page_in, CacheMemory.evict_one

    def page_in(self: CacheMemory, buffers: CachedBuffers, keep: Any = None) -> None:
        if buffers in self._host:
            similar = [arrays for arrays in last if [a.shape for a in arrays] == [a.shape for a in buffers.arrays]]
            buffers.arrays = similar[-1] if similar else buffers.arrays
        restore(self, buffers, keep)

    def noted(self: CacheMemory) -> bool:
        evicted = evict_one(self)
        last.extend(buffers.arrays for buffers in list(self._host)[-1:])
        return evicted

    patch.setattr(CacheMemory, "page_in", page_in)
    patch.setattr(CacheMemory, "evict_one", noted)


@replaced(PrefixCache, "pinned")
def any_tokens(right: Any, self: PrefixCache, prompt: Any, start: Any) -> Any:
    """The tree compares numbers of tokens only, and ignores the tokens."""
    nodes = [place for place in self._nodes.values() if place.position < len(prompt)]
    deepest = max(nodes, key=lambda place: place.position, default=None)
    return right(self, prompt if deepest is None else [*_tokens(deepest), *prompt[deepest.position :]], start)


def _tokens(place: Any) -> list[int]:
    return [token for node in place.path for token in node.tokens]


MUTANTS = (
    EngineMutant("kept-of-the-first-row", "SGLang#31833", "of prompts that share a step each state is the first lane's",
                 Finder.ALONE, of_the_first_row),
    EngineMutant("labelled-as-the-whole-prompt", "vLLM#43559",
                 "a state in the middle of a prompt is kept as the one at its end", Finder.LABEL,
                 labelled_as_the_whole_prompt),
    EngineMutant("labelled-one-ahead", "SGLang#31369", "the counter that names a state leads it by a token",
                 Finder.LABEL, counted_one_ahead),
    EngineMutant("shared-state-written", "vLLM#56196",
                 "a sequence keeps its state where the one is that it went on from", Finder.ALONE,
                 shared_state_written),
    EngineMutant("keys-without-the-state", "vLLM#43090", "keys and values are put back, the recurrent state is not",
                 Finder.ALONE, keys_without_the_state),
    EngineMutant("state-without-the-keys", "SGLang#22493", "the recurrent state is put back, keys and values are not",
                 Finder.ALONE, state_without_the_keys),
    EngineMutant("another-size-of-spans", "vLLM#53142",
                 "where a span ends is counted in blocks of another group's size", Finder.ALONE, another_size_of_spans),
    EngineMutant("cut-edge-from-its-beginning", "vLLM#34587",
                 "a page is read from the span that has its beginning only", Finder.ALONE, first_of_a_page),
    EngineMutant("hit-rounded-to-chunks", "SGLang#29973",
                 "a prompt goes on at a whole chunk with the state of a later token", Finder.LABEL, rounded_to_chunks),
    EngineMutant("ring-of-states", "Atlas#141", "two states have one place in a ring", Finder.ALONE, ring_of_four),
    EngineMutant("kept-and-never-written", "SGLang#39342", "the move is left out, the place is handed on as the state",
                 Finder.ALONE, never_written),
    EngineMutant("layout-left-behind", "SGLang#288",
                 "a state is kept in another layout and put back as if it were the row's", Finder.ALONE,
                 layout_left_behind),
    EngineMutant("kept-before-the-step", "SGLang#24954",
                 "a state is taken before the step has run that its label counts", Finder.ALONE, before_the_step),
    EngineMutant("back-from-the-host", "vLLM#53505", "what comes back from the host is another state", Finder.ALONE,
                 one_span_for_all),
    EngineMutant("partly-filled-page-shared", "MinivLLM#98", "a page that a sequence still writes is shared",
                 Finder.OWNER, partly_filled_page_shared),
    EngineMutant("page-not-held", "vLLM#52360", "a state names a page that its row gives back", Finder.OWNER,
                 page_not_held),
    EngineMutant("found-by-length", "vLLM#45477", "the state after as many tokens is taken, whichever they were",
                 Finder.LABEL, any_tokens),
)  # fmt: skip
