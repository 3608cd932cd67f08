"""Benchmark side of llama.cpp: one process of llama-batched-bench per measurement."""

import signal
import subprocess
from pathlib import Path

from hybridlm.bench.sides import side_failure
from hybridlm.devices.machine import cores


class LlamaCppSide:
    """`lanes` sequences with prompts of `prompt` tokens; arbitrary tokens are decoded, none sampled."""

    def __init__(self, program: Path, gguf: Path, lanes: int, prompt: int):
        self.name = f"llama.cpp {gguf.stem.rpartition('-')[2]}"
        self._program, self._gguf, self._lanes, self._prompt = program, gguf, lanes, prompt

    def decode(self, steps: int) -> list[float]:
        """Return the mean seconds of a decode step, as a list of one."""
        return [self._table(self._prompt, steps)["T_TG"] / steps]

    def prefill(self, tokens: int) -> float:
        """Return the seconds to prefill `tokens` tokens in every lane."""
        return self._table(tokens, 1)["T_PP"]

    def _table(self, prompt: int, steps: int) -> dict[str, float]:
        size = self._lanes * (prompt + steps)
        numbers = {"-c": size, "-b": 2048, "-npp": prompt, "-ntg": steps, "-npl": self._lanes, "-t": cores()}
        command = [str(self._program), "-m", str(self._gguf)]
        command += [str(part) for pair in numbers.items() for part in pair]
        process = subprocess.run(command, capture_output=True)
        rows = parse_table(process.stdout.decode(errors="replace"))
        if process.returncode or not rows:
            number = process.returncode
            ended = f"by signal {signal.Signals(-number).name}" if number < 0 else f"with status {number}"
            raise side_failure(f"expected a table; the program ended {ended}", command, process.stderr)
        return rows[0]


def parse_table(text: str) -> list[dict[str, float]]:
    """Parse the benchmark's table by its headings ("T_TG s" is "T_TG")."""
    lines = [line.strip().strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in cells] for cells in lines]
    if len(rows) < 3:
        return []
    headings = [heading.split()[0] for heading in rows[0]]
    return [dict(zip(headings, map(float, row), strict=True)) for row in rows[2:]]
