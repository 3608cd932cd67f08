"""Measure the throughput with and without speculative decoding on the same prompts.

    python scripts/benchmarks/measure_speculation.py --model DIR [--lanes 1 4 16] [--tokens 96] [--draft-tokens 4]
        [--rounds 5]
    python scripts/benchmarks/measure_speculation.py --model DIR --speculate mtp

Warm sides take turns. Sampled tokens depend on the position, not on the model: "repeating" cycles through 16 tokens,
"new" never repeats a pair, and "misled" has a drafter that proposes wrong tokens. The table has medians over
rounds, and the range of ratios within a round.

With `--speculate mtp` the checkpoint's head drafts, compared with the head without drafts, and with no head. Drafts of
"repeating" and "new" are always right; in "own" the model determines the sampled token.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hybridlm


def unlikely(token_ids: Sequence[int], k: int) -> list[int]:
    """Propose the largest number of tokens, all unlikely."""
    return [1 + len(token_ids) % 7] * k


def repeating(logits: jax.Array, last_token: jax.Array, position: jax.Array) -> jax.Array:
    """Force the token of 16 positions before."""
    return jnp.where(jnp.arange(logits.shape[0]) == 8 + 31 * (position % 16), 1e9, logits)


def new(logits: jax.Array, last_token: jax.Array, position: jax.Array) -> jax.Array:
    """Force another token at every position."""
    return jnp.where(jnp.arange(logits.shape[0]) == 8 + position, 1e9, logits)


def seconds(lm: hybridlm.LM, prompts: list[list[int]], settings: dict[str, Any], speculate: Any) -> tuple[float, int]:
    """Return the seconds of the prompts' completions, and their number of tokens."""
    begin = time.perf_counter()
    completions = lm.generate(prompts, speculate=speculate, ignore_eos=True, progress=False, **settings)
    return time.perf_counter() - begin, sum(len(completion.token_ids) for completion in completions)


Side = tuple[hybridlm.LM, Any]
"""A model and its drafter."""


def measure(sides: dict[str, Side], name: str, lanes: int, tokens: int, rounds: int) -> None:
    """Print a row: compare the last side, with drafts, with each other side."""
    *plain, drafting = sides
    lm = sides[drafting][0]
    rng = np.random.default_rng(lanes)
    prompts = [[int(t) for t in rng.integers(3, lm.config.vocab_size, 64)] for _ in range(lanes)]
    processor = {"repeating": repeating, "own": None}.get(name, new)
    settings = {"max_tokens": tokens, "logits_processor": processor}
    for model, speculate in sides.values():
        seconds(model, prompts, settings, speculate)
    start = lm.stats
    speeds: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(rounds):
        order = [*sides] if turn % 2 == 0 else [*reversed(sides)]
        for side in order:
            duration, count = seconds(sides[side][0], prompts, settings, sides[side][1])
            speeds[side].append(count / duration)
    counts = {key: lm.stats[key] - start[key] for key in start}
    share = counts["accepted_tokens"] / counts["drafted_tokens"] if counts["drafted_tokens"] else 0.0
    ratios = [[a / b for a, b in zip(speeds[drafting], speeds[side], strict=True)] for side in plain]
    cells = [
        *(f"{statistics.median(speeds[side]):.1f}" for side in sides),
        *(f"{statistics.median(each):.2f} ({min(each):.2f}-{max(each):.2f})" for each in ratios),
        str(counts["drafted_tokens"]),
        f"{share:.0%}",
        str(counts["verify_steps"]),
    ]
    print(f"| {name} | {lanes} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--speculate", choices=["ngram", "mtp"], default="ngram")
    parser.add_argument("--lanes", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--texts", nargs="*", help="repeating, new, and misled of ngram, own of mtp; all of them")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--draft-tokens", type=int, default=4)
    args = parser.parse_args()
    head = args.speculate == "mtp"
    loaded: dict[str, Any] = {
        "lanes": max(args.lanes), "context": 64 + args.tokens, "chunk": 64, "draft_tokens": args.draft_tokens,
        "progress": False,
    }  # fmt: skip
    lm = hybridlm.load(args.model, speculate="mtp" if head else None, **loaded)
    lm.warmup(every_bucket=True)  # a head that has stopped guessing would be compiled in a later round
    plain: dict[str, Side] = {"no drafts": (lm, None)}
    if head:
        plain["no head"] = (hybridlm.load(args.model, **loaded), None)
    compared = [f"ratio to {side}" for side in plain]
    headings = ["text", "lanes", *plain, "with drafts", *compared, "drafted", "accepted", "verifying steps"]
    print(f"Tokens per second, and ratios.\n\n| {' | '.join(headings)} |\n|{'---|' * len(headings)}")
    for name in args.texts or ["repeating", "new", "own" if head else "misled"]:
        drafter = SimpleNamespace(propose=unlikely) if name == "misled" else args.speculate
        for lanes in args.lanes:
            measure({**plain, "with drafts": (lm, drafter)}, name, lanes, args.tokens, args.rounds)


if __name__ == "__main__":
    main()
