"""Tiny checkpoints and the results of transformers for them, computed once per run."""

import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from tiny_variants import GREEDY_TOKENS, VARIANTS, Variant, ragged_prompts

import hybridlm
from hybridlm.engine.engine import Engine

Engine.checked = True  # as in tests/hybridlm

NEED_TORCH = [
    "test_adapters.py", "test_config_defaults.py", "test_decisions.py", "test_float32_weights.py",
    "test_mtp_oracle.py", "test_processors.py", "test_rope_types.py",
    "test_text_heads.py", "test_torch_update.py",
]  # fmt: skip
"""Files that import torch at collection; runs without the oracle skip them."""
collect_ignore = NEED_TORCH if find_spec("torch") is None else []


@dataclasses.dataclass(frozen=True)
class Case:
    """A checkpoint in `directory` and transformers' results for each of `prompts`."""

    variant: Variant
    seed: int
    directory: pathlib.Path
    oracle: Any  # transformers_oracle.Oracle, which only these tests can import
    prompts: list[list[int]]
    logits: list[np.ndarray]
    logprobs: list[np.ndarray]

    @functools.cached_property
    def greedy(self) -> list[Any]:
        """Return each prompt's continuation in transformers, the slowest part of a case."""
        return [self.oracle.greedy(prompt, GREEDY_TOKENS) for prompt in self.prompts]

    @property
    def tolerance(self) -> float:
        return self.variant.tolerance

    def where(self, index: int) -> str:
        return f"{self.variant.name}, seed {self.seed}, prompt of {len(self.prompts[index])} tokens"


QWEN_FAMILIES = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
SEEDS = range(5)
CHUNKS = range(1, 18)
OTHER_SEEDS, OTHER_CHUNKS = range(3), ((5, 13), (3, 16), (1, 7))
"""The engine, the decoder and the cuts of a prompt are the same for all families, and the Qwen families have met every
seed and size. Of the others the first variant of a family meets these seeds, every other variant one of them, and each
two of the sizes, in turn: most are odd, so that their ends are inside a chunk of the recurrence."""
EVERY_SEED = {"test_logits_of_every_position"}
"""Tests that run every variant with all seeds: its step is compiled once for all of them."""
FIRST = {family: next(v.name for v in VARIANTS if v.family == family) for family in {v.family for v in VARIANTS}}
OTHERS = {name for family, name in FIRST.items() if family not in QWEN_FAMILIES}
# One for each kind of state: rows of a matrix, decay per channel next to compressed keys, convolution inputs alone.
EVERY_STATE = {FIRST[family] for family in ("nemotron_h", "kimi_linear", "lfm2")}
SHORT_RUN_CHUNKS = {("dense_interval", 7)}
QWEN = {variant.name for variant in VARIANTS if variant.family in QWEN_FAMILIES}
WITH_HEAD = {"test_head_logits_behind_every_token"}
"""Tests for the variants that have a multi-token-prediction head."""
SHORT_RUN = {
    "test_ragged_batch_scores": {"next_base", "dense_base", "sparse_base"},
    # Next to the variant that generates in chunks of the size above; texts that transformers continued are golden, too.
    "test_ragged_batch_generates": EVERY_STATE | {"next_base", "sparse_base"},
    "test_each_prompt_alone": {"dense_multimodal"},
    "test_head_logits_behind_every_token": {"dense_multimodal"},
    "test_interventions_are_forward_hooks": EVERY_STATE | {"dense_base"},
}
"""Variants of the short run for tests that compile other steps, which is nearly all their cost. Of every
family next to the Qwen ones the first variant and its logits, of one variant for each kind of state the completions."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Use one torch thread: small models gain nothing from more on busy cores."""
    if item.get_closest_marker("oracle") is not None:
        import torch

        torch.set_num_threads(1)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The cases of each test, marked `long` where the short run leaves them out.

    Every chunk size meets every variant and one seed, each seed in turn: the chunks of a prompt do not
    depend on the weights, and every seed has its own tests of everything else.
    """
    families = getattr(metafunc.module, "FAMILIES", FIRST)
    variants = [variant for variant in VARIANTS if variant.family in families]
    if metafunc.function.__name__ in WITH_HEAD:
        variants = [variant for variant in variants if variant.mtp]
    if "chunk" in metafunc.fixturenames:
        # The size of the short run meets seed 0.
        params = [
            parameters(
                variant,
                seeds(variant)[(chunk + 3) % len(seeds(variant))],
                chunk,
                short=(variant.name, chunk) in SHORT_RUN_CHUNKS,
            )
            for chunk in CHUNKS
            for variant in variants
            if variant.family in QWEN_FAMILIES or chunk in OTHER_CHUNKS[place(variant) % len(OTHER_CHUNKS)]
        ]
        metafunc.parametrize(("case", "chunk"), params, indirect=["case"], scope="session")
    elif "case" in metafunc.fixturenames:
        name = metafunc.function.__name__
        names = SHORT_RUN.get(name, QWEN | OTHERS)
        params = [
            parameters(variant, seed, short=seed == 0 and variant.name in names)
            for seed in SEEDS
            for variant in variants
            if seed in (SEEDS if name in EVERY_SEED else seeds(variant))
        ]
        metafunc.parametrize("case", params, indirect=True, scope="session")


def place(variant: Variant) -> int:
    """Return the index of the variant in its family, from 0."""
    return [other.name for other in VARIANTS if other.family == variant.family].index(variant.name)


def seeds(variant: Variant) -> Sequence[int]:
    """The seeds that a variant meets."""
    if variant.family in QWEN_FAMILIES:
        return SEEDS
    return OTHER_SEEDS if place(variant) == 0 else (OTHER_SEEDS[place(variant) % len(OTHER_SEEDS)],)


def parameters(variant: Variant, seed: int, *args: Any, short: bool) -> Any:
    name = "-".join(map(str, (variant.name, seed, *args)))
    return pytest.param((variant, seed), *args, id=name, marks=[] if short else [pytest.mark.long])


@pytest.fixture(scope="session")
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    from comparison import log_probabilities
    from tiny_checkpoint import write_checkpoint
    from transformers_oracle import Oracle

    variant, seed = request.param
    directory = tmp_path_factory.mktemp(variant.name)
    write_checkpoint(variant, seed, directory)
    oracle = Oracle.load(directory)
    prompts = ragged_prompts(variant, seed)
    logits = [oracle.logits(prompt) for prompt in prompts]
    logprobs = [log_probabilities(rows, prompt) for rows, prompt in zip(logits, prompts, strict=True)]
    return Case(variant, seed, directory, oracle, prompts, logits, logprobs)


@pytest.fixture(scope="session")
def lm(case: Case) -> "hybridlm.LM":
    """Three lanes for eight prompts reuse lanes; chunks are shorter than half the prompts."""
    return hybridlm.load(str(case.directory), lanes=3, dtype="float32", chunk=16)
