"""Measure CPU seconds of score files: with most likely ids, and with common prefixes.

    python scripts/benchmarks/measure_scoring.py top --model DIR [--rows 200] [--length 128] [--top 64] [--rounds 3]
    python scripts/benchmarks/measure_scoring.py shared --model DIR [--rows 10000] [--prompts 64] [--prompt 200]
        [--answer 20]

Both run on Parquet files, after a run that compiles. `top` scores a file with and without `--top`, in turns. `shared`
compares shuffled answers to some prompts with texts that have as many distinct tokens and no common prefixes.
"""

import argparse
import json
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import hybridlm
from hybridlm.bench.sides import in_turns


def write(path: Path, texts: list[list[int]]) -> Path:
    """Write texts as a column of token ids."""
    pq.write_table(pa.table({"id": list(range(len(texts))), "token_ids": texts}), path)
    return path


def seconds(lm: hybridlm.LM, source: Path, **settings: Any) -> float:
    """Return the CPU seconds of a run."""
    began = time.process_time()
    lm.score_file(source, source.with_name("out.parquet"), restart=True, **settings)
    return time.process_time() - began


def measure_top(lm: hybridlm.LM, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return medians of both kinds of scores and their ratio."""
    rng = np.random.default_rng(0)
    texts = [rng.integers(5, lm.config.vocab_size, args.length).tolist() for _ in range(args.rows)]
    source, sample = write(folder / "texts.parquet", texts), write(folder / "few.parquet", texts[: 2 * lm.engine.lanes])
    settings: list[dict[str, Any]] = [{}, {"top": args.top}]
    for choice in settings:
        seconds(lm, sample, **choice)
    runs = [(str(choice), partial(seconds, lm, source, **choice)) for choice in settings]
    plain, top = (timing.seconds for timing in in_turns(runs, args.rounds, set()))
    return {"plain": round(plain, 2), f"top {args.top}": round(top, 2), "ratio": round(top / plain, 3)}


def measure_shared(lm: hybridlm.LM, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return seconds of both files, and their ratios."""
    rng = np.random.default_rng(0)
    vocab = lm.config.vocab_size
    prompts = [rng.integers(5, vocab, args.prompt).tolist() for _ in range(args.prompts)]
    rows = [prompts[i % args.prompts] + rng.integers(5, vocab, args.answer).tolist() for i in range(args.rows)]
    rows = [rows[i] for i in rng.permutation(args.rows)]
    distinct = args.prompts * args.prompt + args.rows * args.answer
    length = args.prompt + args.answer
    texts = [rng.integers(5, vocab, length).tolist() for _ in range(distinct // length)]
    shared_file, distinct_file = write(folder / "shared.parquet", rows), write(folder / "alone.parquet", texts)
    sample = write(folder / "few.parquet", [*rows[: 4 * args.prompts], *texts[: 2 * lm.engine.lanes]])
    seconds(lm, sample)
    counts: list[int] = []

    def run(file: Path) -> float:
        start, duration = lm.stats["scored_tokens"], seconds(lm, file)
        counts.append(lm.stats["scored_tokens"] - start)
        return duration

    runs = [(file.stem, partial(run, file)) for file in (shared_file, distinct_file)]
    shared_seconds, distinct_seconds = (timing.seconds for timing in in_turns(runs, args.rounds, set()))
    return {
        "rows": args.rows,
        "tokens": sum(map(len, rows)),
        "distinct tokens": distinct,
        "computed": counts[:2],
        "ratio of tokens": round(counts[0] / counts[1], 3),
        "CPU seconds": round(shared_seconds, 2),
        "CPU seconds of distinct tokens": round(distinct_seconds, 2),
        "ratio of seconds": round(shared_seconds / distinct_seconds, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["top", "shared"])
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--length", type=int, default=128, help="tokens of a text")
    parser.add_argument("--top", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=200, help="tokens of a prompt")
    parser.add_argument("--answer", type=int, default=20, help="tokens of an answer")
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--chunk", type=int)
    parser.add_argument("--dtype")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    args.rows = args.rows or (200 if args.what == "top" else 10_000)
    lm = hybridlm.load(args.model, lanes=args.lanes, context=512, chunk=args.chunk, dtype=args.dtype)
    measure = measure_top if args.what == "top" else measure_shared
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(lm, Path(folder), args)))


if __name__ == "__main__":
    main()
