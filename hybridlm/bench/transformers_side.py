"""Benchmark side of Hugging Face transformers, in this process (extra `bench`)."""

# Without torch and transformers their types are not known.
# pyright: reportMissingImports=false

import inspect
import time
from pathlib import Path
from typing import Any

from hybridlm.bench.sides import random_tokens
from hybridlm.devices.machine import cores

WARM_UP = 3


def cache_argument(model: Any) -> str:
    """Return the name of a model's cache argument; it varies before transformers 5.24."""
    parameters = inspect.signature(model.forward).parameters
    return next((name for name in ("cache", "cache_params") if name in parameters), "past_key_values")


class TransformersSide:
    """Greedy decoding of `lanes` sequences with prompts of `prompt` tokens."""

    def __init__(self, checkpoint: Path, dtype: str, lanes: int, prompt: int, context: int):
        import torch
        import transformers

        self.name = f"transformers {dtype}"
        self._torch: Any = torch
        torch.set_num_threads(cores())
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=getattr(torch, dtype))
        self._model = model.eval()
        self._cache_name = cache_argument(model)
        self._context, self._lanes = context, lanes
        self._vocab = model.config.get_text_config().vocab_size
        self._prompts = torch.from_numpy(random_tokens(lanes, prompt, self._vocab).astype("int64"))
        self._start()
        self.decode(WARM_UP)

    def _start(self) -> None:
        self._position = self._prompts.shape[1]
        self._forward(self._prompts, None)

    def _forward(self, ids: Any, cache: Any) -> None:
        with self._torch.inference_mode():
            out = self._model(ids, use_cache=True, logits_to_keep=1, **{self._cache_name: cache})
            self._cache, self._last = out[self._cache_name], out.logits[:, -1].argmax(-1, keepdim=True)

    def decode(self, steps: int) -> list[float]:
        """Return the seconds of `steps` forward passes of one token per lane."""
        if self._position + steps > self._context:
            self._start()
        seconds = []
        for _ in range(steps):
            start = time.perf_counter()
            self._forward(self._last, self._cache)
            seconds.append(time.perf_counter() - start)
        self._position += steps
        return seconds

    def prefill(self, tokens: int) -> float:
        """Return the seconds of a forward pass over `tokens` tokens in every lane."""
        prompts = self._torch.from_numpy(random_tokens(self._lanes, tokens, self._vocab).astype("int64"))
        start = time.perf_counter()
        self._forward(prompts, None)
        seconds = time.perf_counter() - start
        self._position = tokens
        return seconds
