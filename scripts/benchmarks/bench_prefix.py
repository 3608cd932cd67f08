"""Benchmark the prefix cache: prompts with a common prefix, with and without the cache.

    python scripts/benchmarks/make_bench_checkpoint.py 131M /data/131M
    python scripts/benchmarks/bench_prefix.py --model /data/131M [--prompts 12] [--common 1000] [--own 48] [--rounds 3]

Both sides take turns, with new prompts in every round. Rounds without a common prefix measure the overhead. Tokens are
equal except in near ties; the exit status is 1 if two such logits differ by more than 0.1.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

import hybridlm
from hybridlm.bench.sides import Timing


def timed(lm: hybridlm.LM, prompts: list[list[int]], tokens: int) -> tuple[float, int, list[list[int]]]:
    """Return seconds, prefilled prompt tokens, and the sampled tokens."""
    counted, start = lm.stats["prompt_tokens"], time.perf_counter()
    sampled = [
        completion.token_ids for completion in lm.generate(prompts, max_tokens=tokens, ignore_eos=True, progress=False)
    ]
    return time.perf_counter() - start, lm.stats["prompt_tokens"] - counted, sampled


def margin(lm: hybridlm.LM, prompt: list[int], cached: list[int], cold: list[int]) -> float:
    """Return the difference of the two best logits at the first different token, or 0."""
    prefix = next((i for i, pair in enumerate(zip(cached, cold, strict=True)) if pair[0] != pair[1]), None)
    if prefix is None:
        return 0.0
    best = np.sort(np.asarray(lm.forward(prompt + cached[:prefix]).logits[-1]))[-2:]
    return float(best[1] - best[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--common", type=int, default=1000)
    parser.add_argument("--own", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prefix-cache", default="1GB")
    options = parser.parse_args()
    cold = hybridlm.load(options.model, lanes=options.lanes, context=options.context)
    warm = hybridlm.load(options.model, lanes=options.lanes, context=options.context, prefix_cache=options.prefix_cache)
    rng = np.random.default_rng(0)

    def prompts(common: int) -> list[list[int]]:
        size = cold.config.vocab_size
        begins, size_alone = rng.integers(3, size, common).tolist(), options.common + options.own - common
        return [begins + rng.integers(3, size, size_alone).tolist() for _ in range(options.prompts)]

    for lm in (cold, warm):  # compiles
        timed(lm, [prompt[: 2 * 128 + 60] for prompt in prompts(128 + 30)] * 2, 2)
    print("| prompts | seconds without | with | tokens read without | with | faster by |")
    print("|---|---|---|---|---|---|")
    margins: list[float] = []
    for name, common in ((f"{options.common} of their tokens in common", options.common), ("nothing in common", 0)):
        seconds: list[tuple[float, float]] = []
        read = (0, 0)
        for _ in range(options.rounds):
            texts = prompts(common)
            (a, read_a, tokens_a), (b, read_b, tokens_b) = (timed(lm, texts, options.tokens) for lm in (cold, warm))
            seconds.append((a, b))
            read = read_a, read_b
            margins += [margin(cold, *each) for each in zip(texts, tokens_a, tokens_b, strict=True)]
        without, with_cache = (Timing(name, rounds) for rounds in zip(*seconds, strict=True))
        print(
            f"| {options.prompts} x {options.common + options.own}, {name} | {without.seconds:.2f} | "
            f"{with_cache.seconds:.2f} | {read[0]:,} | {read[1]:,} | {with_cache.ratio_text(without)} |"
        )
    counters = {name: count for name, count in warm.stats.items() if name.startswith("prefix")}
    print(
        f"\n{sum(value > 0 for value in margins)} of {len(margins)} completions part, "
        f"at {max(margins):.2g} at most\n{counters}"
    )
    return int(max(margins) > 0.1)


if __name__ == "__main__":
    sys.exit(main())
