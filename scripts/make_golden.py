"""Write tests/golden: tiny checkpoints with results of transformers, or a float64 forward.

    python scripts/make_golden.py [--output tests/golden] [--seed 0] [name ...]

Needs the extra `oracle`. Each folder has config.json and safetensors as transformers wrote them, `expected.npz`
(prompts, logits of every position, log-probabilities, 32 greedy tokens and their margins; logits of a
multi-token-prediction head) and `provenance.json` (versions and settings). Families without a class in transformers
have a random checkpoint and results of a float64 forward from tests/reference. tests/golden_original has files of
mamba_ssm. Random prompts are tried until no step is a near tie and the oracle's rounding noise is small.
"""

# Without the oracle's packages their types are not known.
# pyright: reportMissingImports=false

import argparse
import json
import pathlib
import shutil
import sys
from typing import Any

import numpy as np
import torch
import transformers

sys.path.extend(map(str, (pathlib.Path(__file__).resolve().parents[1] / "tests" / "reference").glob("*/")))

from comparison import Greedy, log_probabilities
from float64_gated import FAMILIES as FLOAT64_FAMILIES
from float64_oracle import Float64Oracle
from original_checkpoint import write_original
from random_checkpoint import write_random_checkpoint
from tiny_checkpoint import write_checkpoint
from tiny_variants import GOLDEN, GREEDY_TOKENS, RAGGED_LENGTHS, Variant, ragged_prompts
from transformers_oracle import Oracle

ROOT = pathlib.Path(__file__).resolve().parents[1]
MIN_MARGIN = 5e-3
MAX_NOISE = 4e-4
MAX_ATTEMPTS = 200
ORIGINAL = ("mamba_base", "mamba2_base")
"""Variants that tests/golden_original has as files of mamba_ssm."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "tests" / "golden", help="folder to write")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and of the first prompts")
    parser.add_argument("names", nargs="*", metavar="name", help="variants to write; all of them by default")
    options = parser.parse_args()
    if names := set(options.names) - {variant.name for variant in GOLDEN}:
        parser.error(f"no such variants: {', '.join(sorted(names))}; there are {', '.join(v.name for v in GOLDEN)}")
    torch.set_num_threads(1)  # one order of summation, so that the same machine writes the same bytes
    for variant in GOLDEN:
        if options.names and variant.name not in options.names:
            continue
        directory = options.output / variant.name
        shutil.rmtree(directory, ignore_errors=True)
        if variant.family in FLOAT64_FAMILIES:
            write_random_checkpoint(variant.name, directory, seed=options.seed, **variant.text)
        else:
            write_checkpoint(variant, options.seed, directory)
        write_expected(variant, options.seed, directory)
        if variant.name in ORIGINAL:
            write_original(directory, options.output.with_name("golden_original") / variant.name)


def write_expected(variant: Variant, seed: int, directory: pathlib.Path) -> None:
    drawn = variant.family in FLOAT64_FAMILIES
    oracle: Oracle | Float64Oracle = Float64Oracle.load(directory) if drawn else Oracle.load(directory)
    chosen = [choose_prompt(oracle, variant, seed, index) for index in range(len(RAGGED_LENGTHS))]
    prompts = [prompt for prompt, _, _, _ in chosen]
    logits = [oracle.logits(prompt) for prompt in prompts]
    arrays: dict[str, Any] = {
        "lengths": np.array([len(prompt) for prompt in prompts], dtype=np.int32),
        "prompts": np.concatenate(prompts).astype(np.int32),
        "logits": np.concatenate(logits),
        "logprobs": np.concatenate([log_probabilities(*pair) for pair in zip(logits, prompts, strict=True)]),
        "greedy": np.stack([greedy.tokens for _, greedy, _, _ in chosen]).astype(np.int32),
        "greedy_margins": np.stack([greedy.margins for _, greedy, _, _ in chosen]).astype(np.float32),
    }
    if variant.mtp:
        # a prompt of one token has no input for the head
        assert isinstance(oracle, Oracle)
        arrays["mtp_logits"] = np.concatenate([oracle.mtp_logits(prompt) for prompt in prompts if len(prompt) > 1])
    np.savez(directory / "expected.npz", **arrays)
    provenance = {
        "command": "python scripts/make_golden.py",
        "seed": seed,
        **({} if drawn else {"torch": torch.__version__, "transformers": transformers.__version__}),
        "class": type(oracle.model).__name__,
        "smallest_greedy_margin": min(float(greedy.margins.min()) for _, greedy, _, _ in chosen),
        "smallest_prompt_margin": min(margin for _, _, margin, _ in chosen),
        "largest_noise": max(noise for _, _, _, noise in chosen),
    }
    (directory / "provenance.json").write_text(json.dumps(provenance, indent=2) + "\n")
    print(f"{variant.name}: {json.dumps(provenance)}")


def choose_prompt(
    oracle: Oracle | Float64Oracle, variant: Variant, seed: int, index: int
) -> tuple[list[int], Greedy, float, float]:
    """Return tokens, continuation, smallest margin and noise of the first prompt without near ties."""
    for attempt in range(MAX_ATTEMPTS):
        prompt = ragged_prompts(variant, seed, attempt)[index]
        best = np.sort(oracle.logits(prompt), axis=-1)
        margin = float((best[:, -1] - best[:, -2]).min())
        if margin <= MIN_MARGIN:
            continue
        greedy = oracle.greedy(prompt, GREEDY_TOKENS)
        noise = oracle.noise([*prompt, *greedy.tokens.tolist()])
        if greedy.margins.min() > MIN_MARGIN and noise < MAX_NOISE:
            return prompt, greedy, margin, noise
    raise RuntimeError(
        f"{variant.name}: no prompt of length {RAGGED_LENGTHS[index]} without a near tie in {MAX_ATTEMPTS}"
    )


if __name__ == "__main__":
    main()
