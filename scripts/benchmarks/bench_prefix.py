"""Benchmark of the prefix cache: prompts with a common prefix, with the cache and without it, in turns in one run.

    python scripts/benchmarks/make_bench_checkpoint.py 131M /data/131M
    python scripts/benchmarks/bench_prefix.py --model /data/131M [--prompts 12] [--common 1000] [--own 48] [--rounds 3]

Every round has new prompts that share their first tokens, so the first prompt of a round finds nothing cached. Further
rounds have prompts that share nothing, and measure the overhead of the cache. Both sides sample the same tokens, unless
steps of other shapes round a near tie of two logits the other way. The script counts these completions, and reports the
largest difference of the two logits. The exit status is 1 if that is more than 0.1.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np

import hybridlm


def timed(lm: hybridlm.LM, prompts: list[list[int]], tokens: int) -> tuple[float, int, list[list[int]]]:
    """Return seconds, prompt tokens that were prefilled, and the sampled tokens."""
    before, start = lm.stats["prompt_tokens"], time.perf_counter()
    sampled = [one.token_ids for one in lm.generate(prompts, max_tokens=tokens, ignore_eos=True, progress=False)]
    return time.perf_counter() - start, lm.stats["prompt_tokens"] - before, sampled


def margin(lm: hybridlm.LM, prompt: list[int], one: list[int], other: list[int]) -> float:
    """Return the difference of the two best logits where two completions diverge; 0 if they do not."""
    same = next((i for i, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]), None)
    if same is None:
        return 0.0
    best = np.sort(np.asarray(lm.forward(prompt + one[:same]).logits[-1]))[-2:]
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
        begins, own = rng.integers(3, size, common).tolist(), options.common + options.own - common
        return [begins + rng.integers(3, size, own).tolist() for _ in range(options.prompts)]

    for lm in (cold, warm):  # compiles
        timed(lm, [one[: 2 * 128 + 60] for one in prompts(128 + 30)] * 2, 2)
    print("| prompts | seconds without | with | tokens read without | with | faster by |")
    print("|---|---|---|---|---|---|")
    margins: list[float] = []
    for name, common in ((f"{options.common} of their tokens in common", options.common), ("nothing in common", 0)):
        seconds: list[tuple[float, float]] = []
        read = (0, 0)
        for _ in range(options.rounds):
            asked = prompts(common)
            (a, read_a, tokens_a), (b, read_b, tokens_b) = (timed(lm, asked, options.tokens) for lm in (cold, warm))
            seconds.append((a, b))
            read = read_a, read_b
            margins += [margin(cold, *each) for each in zip(asked, tokens_a, tokens_b, strict=True)]
        without, with_cache = (statistics.median(side) for side in zip(*seconds, strict=True))
        ratios = [a / b for a, b in seconds]
        print(
            f"| {options.prompts} x {options.common + options.own}, {name} | {without:.2f} | {with_cache:.2f} | "
            f"{read[0]:,} | {read[1]:,} | {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}) |"
        )
    held = {name: count for name, count in warm.stats.items() if name.startswith("prefix")}
    print(
        f"\n{sum(one > 0 for one in margins)} of {len(margins)} completions part, at {max(margins):.2g} at most\n{held}"
    )
    return int(max(margins) > 0.1)


if __name__ == "__main__":
    sys.exit(main())
