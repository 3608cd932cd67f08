"""Score a file of many rows without a model, and print the peak memory.

    python score_memory.py INPUT OUTPUT

Prints {"before", "peak", "rows"}: bytes that were resident before, at most meanwhile, and rows that were written.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from toy_scorer import run_toy, toy

import hybridlm

TOKENS = 16
ROWS = 200_000


def write(path: Path) -> None:
    """Write short incompressible rows; Parquet has them in one row group."""
    texts = np.random.default_rng(0).integers(ord("A"), ord("z") + 1, (ROWS, 200), np.uint8).view("S200")[:, 0]
    if path.suffix == ".parquet":
        table = pa.table({"id": pa.array(range(ROWS)), "text": pa.array(texts).cast(pa.string())})
        pq.write_table(table, path, row_group_size=ROWS)
        assert pq.read_metadata(path).num_row_groups == 1
    else:
        with path.open("w") as file:
            file.writelines(json.dumps({"id": i, "text": text.decode()}) + "\n" for i, text in enumerate(texts))


def encode(item: Any, where: str) -> tuple[int, ...]:
    """The first tokens of a text."""
    return tuple(item[:TOKENS].encode())


def score(texts: Any) -> list[hybridlm.Score]:
    """Numbers of every text that take as much room as a model's."""
    rng = np.random.default_rng(0)
    greedy = np.zeros(TOKENS, bool)
    return [hybridlm.Score(list(ids), rng.normal(size=TOKENS).astype(np.float32), greedy, None) for ids in texts]


def resident(name: str) -> int:
    """Bytes, by a field of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    input, output = Path(sys.argv[1]), Path(sys.argv[2])
    initial = resident("VmRSS")
    report = run_toy(toy(score, encode), input, output, progress=False)
    print(json.dumps({"before": initial, "peak": resident("VmHWM"), "rows": report.texts}))
