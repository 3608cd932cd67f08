"""A float64 forward in the place of transformers, for goldens of families that it does not have."""

import dataclasses
import pathlib
from collections.abc import Sequence

import numpy as np
from comparison import Greedy
from float64_gated import Float64GatedModel


@dataclasses.dataclass
class Float64Oracle:
    """The forward of a checkpoint, with the methods of `Oracle` that goldens need."""

    model: Float64GatedModel

    @classmethod
    def load(cls, directory: pathlib.Path) -> "Float64Oracle":
        return cls(Float64GatedModel(directory))

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """float32[T, V]."""
        return self.model.forward(tokens).astype(np.float32)

    def greedy(self, tokens: Sequence[int], count: int) -> Greedy:
        """Continue a prompt by `count` tokens, each after a forward of all before it."""
        history, margins = list(tokens), []
        for _ in range(count):
            last = self.model.forward(history)[-1]
            second, best = np.sort(last)[-2:]
            history.append(int(last.argmax()))
            margins.append(best - second)
        return Greedy(np.array(history[len(tokens) :]), np.array(margins))

    def noise(self, tokens: Sequence[int], repeats: int = 3) -> float:
        """Largest change of a logit when float32 rounds the embeddings."""
        name, rng, exact = "model.embed_tokens.weight", np.random.default_rng(0), self.model.forward(tokens)
        table, changes = self.model.tensors[name], []
        for _ in range(repeats):
            self.model.tensors[name] = table * (1 + 1.2e-7 * rng.normal(size=table.shape))
            changes.append(float(np.abs(self.model.forward(tokens) - exact).max()))
        self.model.tensors[name] = table
        return max(changes)
