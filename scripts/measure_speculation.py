"""Tokens per second with drafts and without, in turns on the same prompts: a table on stdout.

    python scripts/measure_speculation.py --model DIR [--lanes 1 4 16] [--tokens 96] [--rounds 5] [--draft-tokens 4]

What is drawn is decided by the position, whatever the model says: "repeating" goes round 16 tokens, "new" never has the
same two tokens in a row, and "misled" is the same with a drafter that always proposes and is always wrong. What is
given is the median over the rounds, and of the ratio of each round the median, least and most. Both sides have run
before the clock starts.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hybridlm


class Misled:
    """Proposes as many tokens as it may, none of them likely."""

    def propose(self, token_ids: Sequence[int], k: int) -> list[int]:
        return [1 + len(token_ids) % 7] * k


def repeating(logits: jax.Array, last_token: jax.Array, position: jax.Array) -> jax.Array:
    """The token of a position is that of 16 positions before."""
    return jnp.where(jnp.arange(logits.shape[0]) == 8 + 31 * (position % 16), 1e9, logits)


def new(logits: jax.Array, last_token: jax.Array, position: jax.Array) -> jax.Array:
    """Another token at every position."""
    return jnp.where(jnp.arange(logits.shape[0]) == 8 + position, 1e9, logits)


def seconds(lm: hybridlm.LM, prompts: list[list[int]], settings: dict[str, Any], speculate: Any) -> tuple[float, int]:
    """Time of the prompts' completions, and how many tokens they have."""
    begin = time.perf_counter()
    completions = lm.generate(prompts, speculate=speculate, ignore_eos=True, progress=False, **settings)
    return time.perf_counter() - begin, sum(len(one.token_ids) for one in completions)


def measure(lm: hybridlm.LM, name: str, lanes: int, tokens: int, rounds: int) -> None:
    rng = np.random.default_rng(lanes)
    vocab = lm.config.vocab_size
    prompts = [[int(t) for t in rng.integers(3, vocab, 64)] for _ in range(lanes)]
    settings = {"max_tokens": tokens, "logits_processor": repeating if name == "repeating" else new}
    drafter = Misled() if name == "misled" else "ngram"
    seconds(lm, prompts, settings, None)
    seconds(lm, prompts, settings, drafter)
    before, ratios, plain, drafted = lm.stats, [], [], []
    for turn in range(rounds):
        order = [None, drafter] if turn % 2 == 0 else [drafter, None]
        speeds: dict[bool, float] = {}
        for speculate in order:
            took, count = seconds(lm, prompts, settings, speculate)
            speeds[speculate is None] = count / took
        plain.append(speeds[True])
        drafted.append(speeds[False])
        ratios.append(speeds[False] / speeds[True])
    done = {key: lm.stats[key] - before[key] for key in before}
    share = done["accepted_tokens"] / done["drafted_tokens"] if done["drafted_tokens"] else 0.0
    print(
        f"| {name} | {lanes} | {statistics.median(plain):.1f} | {statistics.median(drafted):.1f} | "
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}) | {done['drafted_tokens']} | "
        f"{share:.0%} | {done['verify_steps']} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--lanes", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--texts", nargs="*", default=["repeating", "new", "misled"])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--draft-tokens", type=int, default=4)
    args = parser.parse_args()
    context = 64 + args.tokens
    lm = hybridlm.load(
        args.model, lanes=max(args.lanes), context=context, chunk=64, draft_tokens=args.draft_tokens, progress=False
    )
    print("| text | lanes | tokens/s | with drafts | ratio | drafted | accepted | verifying steps |")
    print("|---|---|---|---|---|---|---|---|")
    for name in args.texts:
        for lanes in args.lanes:
            measure(lm, name, lanes, args.tokens, args.rounds)


if __name__ == "__main__":
    main()
