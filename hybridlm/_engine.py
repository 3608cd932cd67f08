"""Many sequences through the one step function: lanes, a queue, and the order of steps.

A prompt is consumed in chunks on a grid that starts at its first token, then one token at a time. Steps that consume
prompts leave lanes that are generating idle, so what is computed for a sequence never depends on its batch-mates'
lengths. The rows of a lane are handed on as they are: a sequence that begins starts from zero state inside the step.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from hybridlm._batch import Batch, Feed, Scoring, sampling_arrays
from hybridlm._errors import NumericalError
from hybridlm._programs import Programs, Shape, lane_rung
from hybridlm._sampling import LogitsProcessor
from hybridlm._sequence import Request
from hybridlm._sequence import Sequence as Alive
from hybridlm._steps import Drawn, Scored
from models import Decoder, kv_blocks

StepHook = Callable[[tuple, list[Any]], tuple]
"""(pools, what owns each lane) -> pools; for tests that inject faults."""


class Engine:
    """Runs generation and scoring over at most `lanes` lanes.

    Args:
        model: the model, for the shapes of its state.
        params: its parameters, flat.
        programs: its compiled steps.
        lanes: most lanes of a step.
        context: most tokens of a sequence.
        chunk: tokens of a prompt consumed by one step.
        cache_dtype: dtype of convolution and key/value state.

    Attributes:
        stats: counters of steps and tokens.
        after_step: test hook, called after every step with the pools and the owners of the lanes.
    """

    def __init__(
        self,
        model: Decoder,
        params: tuple[jax.Array, ...],
        programs: Programs,
        lanes: int,
        context: int,
        chunk: int,
        cache_dtype: Any,
    ):
        self.lanes, self.context, self.chunk = lanes, context, chunk
        self.params, self.programs = params, programs
        self.stats = {"steps": 0, "prompt_tokens": 0, "generated_tokens": 0, "scored_tokens": 0}
        self.after_step: StepHook | None = None
        self._vocab = model.config.vocab_size
        self._new_pools = lambda lanes: model.init_state(lanes, context, cache_dtype)
        self._pools: tuple[int, tuple] | None = None

    def generate(self, requests: Sequence[Request], processor: LogitsProcessor | None = None) -> Iterator[Alive]:
        """Continue every request; yields its sequence each time it has drawn a token.

        The caller ends a sequence by setting its `finish_reason`, at the latest when the context is full, and passes
        only prompts that are shorter than the context. All requests ask for the same number of log-probabilities.
        """
        lanes = lane_rung(len(requests), self.lanes)
        queue = deque(requests)
        alive: list[Alive | None] = [None] * lanes
        top = requests[0].params.logprobs if requests else None
        with _Borrowed(self, lanes) as pools:
            while queue or any(alive):
                for lane in range(lanes):
                    if alive[lane] is None and queue:
                        alive[lane] = Alive(queue.popleft())
                prefill = any(sequence is not None and sequence.prefilling for sequence in alive)
                shape = Shape("generate", lanes, self.chunk if prefill else 1, top, processor)
                feeds = [
                    Feed(sequence.pending(shape.tokens), sequence.consumed)
                    if sequence is not None and sequence.prefilling == prefill
                    else None
                    for sequence in alive
                ]
                drawn = self._step(pools, shape, feeds, *sampling_arrays(alive), owners=alive)
                yield from self._advance(alive, feeds, drawn)
                for lane, sequence in enumerate(alive):
                    if sequence is not None and sequence.finish_reason is not None:
                        alive[lane] = None

    def _advance(self, alive: list[Alive | None], feeds: list[Feed | None], drawn: Drawn) -> Iterator[Alive]:
        for lane, (sequence, feed) in enumerate(zip(alive, feeds, strict=True)):
            if sequence is None or feed is None:
                continue
            kind = "prompt_tokens" if sequence.prefilling else "generated_tokens"
            self.stats[kind] += len(feed.tokens)
            sequence.consumed += len(feed.tokens)
            if sequence.prefilling:
                continue
            token = int(drawn.token[lane])
            if token >= self._vocab:
                raise NumericalError(f"request {sequence.request.index}", sequence.consumed)
            sequence.generated.append(token)
            if drawn.logprob is not None:
                sequence.logprobs.append(float(drawn.logprob[lane]))
            if drawn.top_tokens is not None and drawn.top_logprobs is not None:
                pairs = zip(drawn.top_tokens[lane].tolist(), drawn.top_logprobs[lane].tolist(), strict=True)
                sequence.top_logprobs.append(dict(pairs))
            yield sequence

    def score(self, texts: Sequence[tuple[int, ...]], top: int = 0) -> Iterator[Scoring]:
        """Score every token of every text, longest first; yields each text when it is done."""
        lanes = lane_rung(len(texts), self.lanes)
        queue = deque(sorted(range(len(texts)), key=lambda i: -len(texts[i])))
        alive: list[Scoring | None] = [None] * lanes
        with _Borrowed(self, lanes) as pools:
            while queue or any(alive):
                for lane in range(lanes):
                    if alive[lane] is None and queue:
                        index = queue.popleft()
                        alive[lane] = Scoring(index, texts[index])
                shape = Shape("score", lanes, self.chunk, top)
                feeds = [None if text is None else text.feed(self.chunk) for text in alive]
                targets = np.zeros((lanes, self.chunk), np.int32)
                for lane, text in enumerate(alive):
                    if text is not None:
                        following = text.targets(self.chunk)
                        targets[lane, : len(following)] = following
                scored: Scored = self._step(pools, shape, feeds, targets, owners=alive)
                for lane, text in enumerate(alive):
                    if text is not None:
                        self.stats["scored_tokens"] += text.take(scored, lane, self.chunk)
                        if text.done:
                            alive[lane] = None
                            yield text

    def _step(
        self, pools: list[tuple], shape: Shape, feeds: Iterable[Feed | None], *operands: Any, owners: list[Any]
    ) -> Any:
        """Run one step on `pools[0]`, which it replaces; returns the outputs on the host."""
        batch = Batch.of(list(feeds), shape.tokens)
        blocks = np.int32(max(kv_blocks(batch.end), 1))
        outputs, state = self.programs.run(
            shape, self.params, pools.pop(), batch.tokens, batch.lengths, batch.positions, blocks, *operands
        )
        pools.append(state if self.after_step is None else self.after_step(state, owners))
        self.stats["steps"] += 1
        return jax.device_get(outputs)


class _Borrowed:
    """The pools of one run. They come back for the next run of as many lanes only if no step was cut short."""

    def __init__(self, engine: Engine, lanes: int):
        self._engine, self._lanes = engine, lanes
        self._pools: list[tuple] = []

    def __enter__(self) -> list[tuple]:
        kept, self._engine._pools = self._engine._pools, None
        self._pools.append(kept[1] if kept and kept[0] == self._lanes else self._engine._new_pools(self._lanes))
        return self._pools

    def __exit__(self, *exception: object) -> None:
        if self._pools:
            self._engine._pools = (self._lanes, self._pools[0])
