"""Tiny checkpoints and what transformers makes of them, computed once per run."""

import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest
from tiny_variants import GREEDY_TOKENS, VARIANTS, Variant, ragged_prompts

import hybridlm


@dataclasses.dataclass(frozen=True)
class Case:
    """A checkpoint in `directory` and, for each of `prompts`, what transformers computes alone from it."""

    variant: Variant
    seed: int
    directory: pathlib.Path
    oracle: Any  # transformers_oracle.Oracle, which only these tests can import
    prompts: list[list[int]]
    logits: list[np.ndarray]
    logprobs: list[np.ndarray]
    greedy: list[Any]

    def where(self, index: int) -> str:
        return f"{self.variant.name}, seed {self.seed}, prompt of {len(self.prompts[index])} tokens"


HERE = pathlib.Path(__file__).resolve().parent
SHORT_RUN_CHUNKS = {"dense_interval": 5, "sparse_multimodal": 17}
SHORT_RUN_ALONE = ("dense_multimodal",)
"""Chunk sizes and single lanes are shapes of their own, whose compilation is nearly all that a test costs."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the tests here, other chunk sizes, and other variants alone, are marked `long`."""
    for item in items:
        params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
        if "case" not in params or item.path.parent != HERE:
            continue
        name = params["case"][0].name
        if "chunk" in params:
            short = params["chunk"] == SHORT_RUN_CHUNKS.get(name)
        else:
            short = "alone" not in item.name or name in SHORT_RUN_ALONE
        if not short:
            item.add_marker(pytest.mark.long)


def cases() -> list[Any]:
    return [
        pytest.param((variant, seed), id=f"{variant.name}-{seed}", marks=[pytest.mark.long] if seed else [])
        for seed in range(5)
        for variant in VARIANTS
    ]


@pytest.fixture(scope="session", params=cases())
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    import torch
    from tiny_checkpoint import write_checkpoint
    from transformers_oracle import Oracle, log_probabilities

    # Models this small gain nothing from threads, and threads that wait for a busy core cost minutes.
    torch.set_num_threads(1)
    variant, seed = request.param
    directory = tmp_path_factory.mktemp(variant.name)
    write_checkpoint(variant, seed, directory)
    oracle = Oracle.load(directory)
    prompts = ragged_prompts(variant, seed)
    logits = [oracle.logits(prompt) for prompt in prompts]
    logprobs = [log_probabilities(rows, prompt) for rows, prompt in zip(logits, prompts, strict=True)]
    greedy = [oracle.greedy(prompt, GREEDY_TOKENS) for prompt in prompts]
    return Case(variant, seed, directory, oracle, prompts, logits, logprobs, greedy)


@pytest.fixture(scope="session")
def lm(case: Case) -> "hybridlm.LM":
    """Three lanes for eight prompts, so that lanes are reused, and chunks shorter than half of the prompts."""
    return hybridlm.load(str(case.directory), lanes=3, dtype="float32", chunk=16)
