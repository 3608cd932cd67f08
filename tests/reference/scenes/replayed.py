"""Runs with drafts: every row is compared after every step with single tokens."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from verify_scene import own_table

import hybridlm
from hybridlm.requests.sequence import ActiveSequence, sampling_arrays
from hybridlm.rows.pool import RowPool
from hybridlm.steps.operands import Batch, Feed, StepInputs


class Text(NamedTuple):
    """A prompt and its completion.

    Attributes:
        prompt: token ids.
        settings: of the request.
        tokens: prompt and completion.
    """

    prompt: list[int]
    settings: dict[str, Any]
    tokens: list[int]


class Replayed:
    """Texts and their states after each token, by steps of one token.

    Args:
        lm: the model; nothing is drafted.
        prompts: of the texts, each with settings; every second one is sampled.
        most: tokens after each prompt.
    """

    def __init__(self, lm: hybridlm.LM, prompts: Sequence[list[int]], limit: int):
        self.lm = lm
        self.texts: list[Text] = []
        for number, prompt in enumerate(prompts):
            settings = {"ignore_eos": True, "temperature": float(number % 2), "seed": 7}
            self.texts.append(Text(prompt, settings, []))
        with lm.session(speculate=None) as session:
            for number in range(len(prompts)):
                self.submit(session, number, limit)
            while session.busy:
                for event in session.step():
                    if event.completion is not None:
                        self.texts[event.index].tokens.extend(prompts[event.index] + event.completion.token_ids)
        lanes = lm.engine.lanes
        self._states: list[list[list[np.ndarray]]] = []
        self._caches: list[list[tuple[str, np.ndarray]]] = []
        for start in range(0, len(prompts), lanes):
            self._replay([text.tokens for text in self.texts[start : start + lanes]])

    def submit(self, session: hybridlm.Session, number: int, limit: int, **settings: Any) -> int:
        """Submit a text; return the request's number. The text's key draws its samples."""
        text, index = self.texts[number], session._submitted
        options: Any = {**text.settings, "max_tokens": limit, **settings}
        request = self.lm.text_model.inputs.request(index, text.prompt, hybridlm.SamplingParams(**options))
        session.add(dataclasses.replace(request, sampling_index=number))
        return index

    def check(self, number: int, rows: Any, row: int, pages: np.ndarray | None, consumed: int) -> None:
        """Compare a row and its pages with the state after `consumed` tokens of a text."""
        of_one, grown = _split(rows, row, pages)
        for got, want in zip(of_one, self._states[number][consumed - 1], strict=True):
            np.testing.assert_allclose(got, want, atol=5e-5, rtol=1e-4)
        for (name, got), (_, want) in zip(grown, self._caches[number], strict=True):
            positions = consumed - (".layer" in name)  # a model's own head has a row for every pair of tokens
            np.testing.assert_allclose(got[:, :positions], want[:, :positions], atol=5e-5, rtol=1e-4)

    def _replay(self, texts: list[list[int]]) -> None:
        engine = self.lm.engine
        rows, shape = engine.new_rows(engine.rows), engine.shape("generate", engine.lanes, 1)
        states: list[list[list[np.ndarray]]] = [[] for _ in texts]
        table: Any = own_table(engine.lanes, engine.context) if engine.blocks else [None] * engine.lanes
        for place in range(max(map(len, texts))):
            feeds = [Feed((text[place],), place) if place < len(text) else None for text in texts]
            feeds += [None] * (engine.lanes - len(texts))
            batch = Batch.of(feeds, 1, range(engine.lanes), table if engine.blocks else None)
            inputs = StepInputs(batch, None, *sampling_arrays([None] * engine.lanes))
            _, rows = engine.program(shape)(engine.params, rows, jax.device_put(inputs))
            for lane, text in enumerate(texts):
                if place < len(text):
                    states[lane].append(_split(rows, lane, table[lane])[0])
        self._states += states
        self._caches += [_split(rows, lane, table[lane])[1] for lane in range(len(texts))]


def _split(rows: Any, row: int, pages: np.ndarray | None) -> tuple[list[np.ndarray], list[tuple[str, np.ndarray]]]:
    """Return a row's arrays of fixed size, and its pages' caches by name."""
    fixed, grown = [], []
    for path, leaf in jax.tree_util.tree_leaves_with_path(rows.layers):
        name = jax.tree_util.keystr(path)
        if name.endswith((".key", ".value")):
            cache = np.asarray(leaf)[pages].swapaxes(0, 1)
            grown.append((name, cache.reshape(len(cache), -1, cache.shape[-1])))
        else:
            fixed.append(np.array(leaf[row]))
    return fixed, grown


class Run:
    """A session that is checked after every step.

    Args:
        replayed: the texts.
        session: with drafts.

    Attributes:
        checked: rows that were compared.
        events: counts of cancelled requests and of pages that several have, each in each step.
    """

    def __init__(self, replayed: Replayed, session: hybridlm.Session):
        self._replayed, self._session = replayed, session
        self._numbers: list[int] = []
        self._ended: set[int] = set()
        self.checked, self.events = 0, Counter[str]()

    def join(self, number: int, limit: int, **settings: Any) -> None:
        """Ask for a text."""
        self._replayed.submit(self._session, number, limit, **settings)
        self._numbers.append(number)

    def cancel(self, number: int) -> None:
        """End a request that is alive, if there is any."""
        alive = sorted(self._session._alive)
        if alive:
            self._session.cancel(alive[number % len(alive)])
            self.events["cancelled"] += 1
            self.step()

    def resize(self) -> None:
        """Give the next decode step all lanes, or as many as necessary."""
        scheduler = self._session._scheduler
        lanes = self._session._engine.lanes
        scheduler._decode_lanes = 1 if scheduler._decode_lanes == lanes else lanes

    def step(self) -> None:
        """One step; every row that somebody holds is compared."""
        for event in self._session.step():
            if event.completion is None:
                continue
            completion, number = event.completion, self._numbers[event.index]
            text = self._replayed.texts[number]
            generated = text.tokens[len(text.prompt) :]
            assert completion.token_ids == generated[: len(completion.token_ids)]
            self._ended.add(event.index)
        pool = self._session._scheduler._pool
        if pool is not None and pool.page_owner is not None:
            self.events["shared pages"] += int((pool.page_owner.counts() > 1).sum())
        for sequence in self._session._scheduler.joined:
            assert pool is not None and isinstance(sequence, ActiveSequence) and sequence.slot is not None
            self._check(pool, sequence, pool.rows_of([sequence.slot])[0])

    def _check(self, pool: RowPool, sequence: ActiveSequence, row: int) -> None:
        consumed = sequence.consumed
        for dispatched in self._session._in_flight:
            for other, lane in dispatched.sequences:
                if other is sequence and dispatched.accepted is not None:
                    consumed += int(dispatched.accepted[lane])  # the host learns it in the next step
        if consumed:
            lane_pages = None if pool.page_owner is None else pool._table[row]
            self._replayed.check(self._numbers[sequence.request.index], pool.look(), row, lane_pages, consumed)
            self.checked += 1

    def finish(self) -> None:
        """Step until everything has ended."""
        while self._session.busy:
            self.step()
        assert self._ended == set(range(len(self._numbers)))
