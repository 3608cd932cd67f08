"""Comparison of two models: how far the distributions of each position of texts are from one another."""

import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from hybridlm.engine.engine import Engine
from hybridlm.programs.compilation_cache import use_cache
from hybridlm.programs.shapes import Shape
from hybridlm.programs.stored_programs import types_of
from hybridlm.rows.pool import RowPool
from hybridlm.steps.divergence import DIVERGENCE_CONTRACT, Divergences, divergence_step
from hybridlm.steps.operands import Batch, Feed
from hybridlm.steps.structure import Structure
from ir_passes import Certificate, CompiledStep, compile_step
from ir_passes.host.slot_owner import Slot
from ir_passes.rewrites import DropDead


@dataclass(frozen=True)
class Divergence:
    """Distance between two models on texts; entries `offsets[i]` to `offsets[i + 1]` belong to text i.

    An entry is about the distribution in the place of one token, over the whole vocabulary. Nothing predicts the first
    token of a text: its numbers are nan, and its `same_top` False.

    Attributes:
        token_ids: int32 [E], the tokens of all texts.
        kl: float32 [E], KL(P || Q) in nats, where P is this model's distribution and Q the other one's.
        reverse_kl: float32 [E], KL(Q || P) in nats.
        js: float32 [E], Jensen-Shannon divergence in nats, at most log 2.
        same_top: bool [E], whether both have the same most likely token.
        offsets: int64 [texts + 1].
        certificate: of the step that compared them; None if nothing was compared.
    """

    token_ids: np.ndarray
    kl: np.ndarray
    reverse_kl: np.ndarray
    js: np.ndarray
    same_top: np.ndarray
    offsets: np.ndarray
    certificate: Certificate | None = field(default=None, repr=False, compare=False)

    @cached_property
    def predicted(self) -> np.ndarray:
        """Indices of the entries of tokens that are predicted: all but the first of each text."""
        first = np.zeros(len(self.token_ids), bool)
        first[self.offsets[:-1]] = True
        return np.flatnonzero(~first)

    @property
    def mean_kl(self) -> float:
        """Mean of `kl` over the predicted tokens, in float64; nan without any."""
        return self._mean(self.kl)

    @property
    def mean_reverse_kl(self) -> float:
        """Mean of `reverse_kl` over the predicted tokens."""
        return self._mean(self.reverse_kl)

    @property
    def mean_js(self) -> float:
        """Mean of `js` over the predicted tokens."""
        return self._mean(self.js)

    @property
    def agreement(self) -> float:
        """Share of the predicted tokens in whose place both models have the same most likely token."""
        return self._mean(self.same_top)

    def of(self, text: int) -> dict[str, Any]:
        """Return what was found about one text: its arrays, and the means over its predicted tokens."""
        own = slice(int(self.offsets[text]), int(self.offsets[text + 1]))
        arrays = {name: getattr(self, name)[own] for name in ("token_ids", "kl", "reverse_kl", "js", "same_top")}
        one = Divergence(**arrays, offsets=np.array([0, own.stop - own.start]))
        means = {"mean_kl": one.mean_kl, "mean_reverse_kl": one.mean_reverse_kl, "mean_js": one.mean_js}
        return {**arrays, **means, "agreement": one.agreement}

    def _mean(self, values: np.ndarray) -> float:
        return float(np.mean(values[self.predicted], dtype=np.float64)) if len(self.predicted) else float("nan")


class Side(NamedTuple):
    """One of two models that are compared."""

    engine: Engine
    structure: Structure


class _Owner:
    """A text in the rows of one model, which the sanitizer tells apart."""


@dataclass(eq=False)
class ComparedText:
    """A text while it is compared; it has the same lane in both models.

    Attributes:
        index: number of the text.
        tokens: its token ids; the last one is predicted and not prefilled.
        consumed: tokens that both states have seen once the dispatched steps have run.
        slots, owners: its rows, and who holds them, in each model.
        found: arrays of its tokens.
    """

    index: int
    tokens: tuple[int, ...]
    consumed: int = 0
    slots: list[Slot] = field(default_factory=list)
    owners: tuple[_Owner, _Owner] = field(default_factory=lambda: (_Owner(), _Owner()))
    found: Divergences = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.tokens)
        self.found = _arrays(count)


_PROGRAMS: weakref.WeakKeyDictionary[Engine, dict[Any, CompiledStep]] = weakref.WeakKeyDictionary()
"""Compiled comparisons, by the first model's engine and the types of all arguments."""


def compare(sides: tuple[Side, Side], texts: Sequence[tuple[int, ...]]) -> tuple[Divergence, dict[int, int]]:
    """Return how far two models of one vocabulary are from one another, and where they computed NaN.

    A text in which a model did has the index of its first such token beside it.

    Each text has a lane of its own in both; chunks are those of the first one. A text has the same bits whatever is
    compared with it in steps of the same shape.

    Args:
        sides: the models, on one device.
        texts: token ids, which fit the context of both.

    Raises:
        IsolationError, AuditError, HloError: a step is refused (see `compile_step`).
    """
    compared = [ComparedText(i, text) for i, text in enumerate(texts)]
    waiting = deque(sorted((one for one in compared if len(one.tokens) > 1), key=lambda one: -len(one.tokens)))
    certificate = None
    if waiting:
        most = min(side.engine.prefill_rows for side in sides)
        size = max(side.engine.bucket(len(waiting), most) for side in sides)
        pools: list[RowPool] = []
        try:
            for side in sides:
                pools.append(side.engine.borrow("prefill", size))
            certificate = _compare(sides, pools, waiting)
        finally:
            for side, pool in zip(sides, pools, strict=False):
                side.engine.give_back("prefill", pool)
    nan = {one.index: np.flatnonzero(np.isnan(np.stack(one.found[:3])[:, 1:]).any(axis=0)) for one in compared}
    return _joined(compared, certificate), {i: 1 + int(tokens[0]) for i, tokens in nan.items() if tokens.size}


def _joined(compared: Sequence[ComparedText], certificate: Certificate | None) -> Divergence:
    tokens = np.array([token for one in compared for token in one.tokens], np.int32)
    offsets = np.cumsum([0, *(len(one.tokens) for one in compared)], dtype=np.int64)
    found = [_arrays(0), *(one.found for one in compared)]
    kl, reverse_kl, js, same_top = (np.concatenate(each) for each in zip(*found, strict=True))
    return Divergence(tokens, kl, reverse_kl, js, same_top, offsets, certificate)


def _arrays(count: int) -> Any:
    """Return host arrays for the results of a text, without any yet."""
    numbers = [np.full(count, np.nan, np.float32) for _ in range(3)]
    return Divergences._make([*numbers, np.zeros(count, bool)])


def _compare(sides: tuple[Side, Side], pools: list[RowPool], waiting: deque[ComparedText]) -> Certificate:
    chunk, size = sides[0].engine.chunk, pools[0].size
    lanes: list[ComparedText | None] = [None] * size
    flights: deque[tuple[Divergences, list[tuple[int, ComparedText, int, int]]]] = deque()
    program: CompiledStep | None = None
    while flights or waiting or any(lanes):
        while waiting and pools[0].owner.free:
            _join(pools, lanes, waiting.popleft())
        if any(lanes):
            hidden, parts = _dispatch(sides, pools, lanes, chunk)
            arguments = (sides[0].engine.params, sides[1].engine.params, *hidden)
            program = program or _program(sides, arguments)
            (outputs,) = program(*arguments)
            flights.append((outputs, parts))
        if len(flights) > 1 or not any(lanes):
            outputs, parts = flights.popleft()
            for all_lanes, name in zip(jax.device_get(outputs), Divergences._fields, strict=True):
                for lane, text, first, count in parts:
                    getattr(text.found, name)[first : first + count] = all_lanes[lane, :count]
    assert program is not None, "there are texts"
    return program.certificate


def _join(pools: list[RowPool], lanes: list[ComparedText | None], text: ComparedText) -> None:
    """Give a row of each model to a text; both are the same lane."""
    text.slots = [pool.acquire() for pool in pools]
    first, second = (pool.lanes([slot])[0] for pool, slot in zip(pools, text.slots, strict=True))
    assert first == second, "rows of both pools are taken and released in the same order"
    lanes[first] = text


def _dispatch(
    sides: tuple[Side, Side], pools: list[RowPool], lanes: list[ComparedText | None], chunk: int
) -> tuple[list[Any], list[tuple[int, ComparedText, int, int]]]:
    """Dispatch a step of each model; return their residual streams, and (lane, text, first token, count) of each."""
    feeds = [
        None if one is None else Feed(one.tokens[:-1][one.consumed : one.consumed + chunk], one.consumed)
        for one in lanes
    ]
    hidden: list[Any] = []
    for i, (side, pool) in enumerate(zip(sides, pools, strict=True)):
        batch = Batch.of(feeds, chunk)
        owners = [None if one is None else one.owners[i] for one in lanes]
        shape = Shape("hidden", pool.size, chunk)
        hidden.append(side.engine.run(shape, pool, batch, owners=owners, counts=np.asarray(batch.lengths)))
    parts: list[tuple[int, ComparedText, int, int]] = []
    for lane, (text, feed) in enumerate(zip(lanes, feeds, strict=True)):
        if text is None or feed is None:
            continue
        parts.append((lane, text, feed.position + 1, len(feed.tokens)))
        text.consumed += len(feed.tokens)
        if text.consumed == len(text.tokens) - 1:
            lanes[lane] = None
            for side, pool, slot, owner in zip(sides, pools, text.slots, text.owners, strict=True):
                pool.owner.release(slot)
                side.engine.forget(owner)
    return hidden, parts


def _program(sides: tuple[Side, Side], arguments: tuple[Any, ...]) -> CompiledStep:
    """Return the compiled comparison of these arguments."""
    leaves, tree = jax.tree.flatten(arguments)
    key = (sides[0].structure, sides[1].structure, tree, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves))
    kept = _PROGRAMS.setdefault(sides[0].engine, {})
    if key not in kept:
        programs = sides[0].engine.programs
        step = divergence_step(sides[0].structure, sides[1].structure)
        with use_cache(programs.cache):
            kept[key] = compile_step(
                step, types_of(arguments), DIVERGENCE_CONTRACT, passes=(DropDead(),), certify=programs.certify
            )
    return kept[key]
