"""Benchmark side of hybridlm: its compiled steps, and `generate` as a whole."""

import time
from itertools import pairwise
from typing import Any

import jax
import numpy as np

from hybridlm.bench.sides import random_tokens
from hybridlm.lm import LM
from hybridlm.requests.sequence import sampling_arrays
from hybridlm.steps.generate import LAST_SAMPLED
from hybridlm.steps.operands import Batch, StepInputs
from ir_passes import CompiledStep
from models import kv_blocks

WARM_UP = 5


class EngineSide:
    """Greedy decoding of `lanes` sequences with prompts of `prompt` tokens.

    Tokens are copied to the host while the next step runs.

    Attributes:
        reading, scoring: steps for a chunk of each prompt, and of each text.
        rows: consumed by each step.
        last: newest tokens on the host, int32 [lanes].
    """

    name = "hybridlm"

    def __init__(self, lm: LM, lanes: int, prompt: int, name: str = name):
        self._lm, self._engine, self.lanes, self.name = lm, lm.engine, lanes, name
        self.program = self._engine.program(self._engine.shape("generate", lanes, 1, lanes))
        self.reading = self._engine.program(self._engine.shape("generate", lanes, self._engine.chunk, lanes))
        sampling, mode = sampling_arrays([None] * lanes)
        self._last_sampled, self._sampling = self._engine.placement.ahead(
            (np.full((lanes, 1), LAST_SAMPLED, np.int32), {"sampling": sampling, "sampling_mode": mode})
        )
        self._tokens = random_tokens(lanes, prompt, lm.config.vocab_size)
        self._start()
        self.decode(WARM_UP)

    def _start(self) -> None:
        pool = self._engine.new_pool(self.lanes)
        _, lane_map = pool.arrange([pool.acquire(self._engine.context) for _ in range(self.lanes)], self.lanes)
        self.rows, self._pages = pool.take(), lane_map.pages
        self.position = 0
        self.last = self._read(self._tokens)

    def _read(self, tokens: np.ndarray) -> np.ndarray:
        chunk = self._engine.chunk
        sampled: Any = None
        for start in range(0, tokens.shape[1], chunk):
            part = tokens[:, start : start + chunk]
            padded = np.pad(part, [(0, 0), (0, chunk - part.shape[1])])
            sampled = self._run(self.reading, padded, part.shape[1], **self._sampling)
        return jax.device_get(sampled.token)

    def _run(self, program: CompiledStep, tokens: np.ndarray | jax.Array, length: int, **parts: Any) -> Any:
        lengths = np.full(self.lanes, length, np.int32)
        positions = np.full(self.lanes, self.position, np.int32)
        self.position += length
        slots = np.arange(self.lanes, dtype=np.int32)
        batch = Batch(tokens, lengths, positions, slots, np.array(kv_blocks(self.position), np.int32), self._pages)
        out, self.rows = program(self._engine.params, self.rows, StepInputs(batch, **parts))
        return out

    def decode(self, steps: int) -> list[float]:
        """Return the seconds of each decode step, up to the last token on the host."""
        if self.position + steps > self._engine.context:
            self._start()
        ends = [time.perf_counter()]
        unread: Any = None
        for step in range(steps + 1):
            dispatched = self._run(self.program, self._last_sampled, 1, **self._sampling) if step < steps else None
            if unread is not None:
                self.last = jax.device_get(unread.token)
                ends.append(time.perf_counter())
            unread = dispatched
        return [end - begin for begin, end in pairwise(ends)]

    def prefill(self, tokens: int) -> float:
        """Return the seconds to prefill `tokens` tokens in every lane."""
        self.position = 0
        prompts = random_tokens(self.lanes, tokens, self._lm.config.vocab_size)
        start = time.perf_counter()
        self.last = self._read(prompts)
        return time.perf_counter() - start

    @property
    def scoring(self) -> CompiledStep:
        return self._engine.program(self._engine.shape("score", self.lanes, self._engine.chunk, self.lanes, top=0))

    def score(self, tokens: int) -> float:
        """Return the seconds to score new texts of `tokens` tokens."""
        chunk, program = self._engine.chunk, self.scoring
        texts = random_tokens(self.lanes, -(-tokens // chunk) * chunk + 1, self._lm.config.vocab_size)
        self.position = 0
        start = time.perf_counter()
        for first in range(0, tokens, chunk):
            targets = texts[:, first + 1 : first + 1 + chunk]
            part = min(chunk, tokens - first)
            jax.device_get(self._run(program, texts[:, first : first + chunk], part, targets=targets))
        return time.perf_counter() - start

    def engine_steps(self, steps: int) -> list[float]:
        """Return the seconds between steps of `generate`: program and host together."""
        prompts = self._tokens[:, : max(1, self._engine.context - steps - 1)].tolist()
        ends = []
        for i, _ in enumerate(self._lm.stream(prompts, max_tokens=steps + 1, ignore_eos=True)):
            if i % self.lanes == self.lanes - 1:
                ends.append(time.perf_counter())
        return [end - begin for begin, end in pairwise(ends)]
