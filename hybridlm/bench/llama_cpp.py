"""Benchmark sides of llama.cpp.

One process of llama-batched-bench per measurement; for mixed batches llama-server, with a slot per sequence and an HTTP
client per request.
"""

import json
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from hybridlm.bench.mixed import SAMPLED, MixedRequest
from hybridlm.bench.sides import SideFailed, side_failure
from hybridlm.devices.machine import cores
from hybridlm.multiprocess.launch import free_port


class LlamaCppSide:
    """`lanes` sequences with prompts of `prompt` tokens; arbitrary tokens are decoded, none sampled."""

    def __init__(self, program: Path, gguf: Path, lanes: int, prompt: int):
        self.name = f"llama.cpp {gguf.stem.rpartition('-')[2]}"
        self._program, self._gguf, self._lanes, self._prompt = program, gguf, lanes, prompt

    def decode(self, steps: int) -> list[float]:
        """Return the mean seconds of a decode step, as a list of one."""
        return [self._table(self._prompt, steps)["T_TG"] / steps]

    def prefill(self, tokens: int) -> float:
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


START_SECONDS = 300.0


class LlamaServerSide:
    """A llama-server process; raises SideFailed after `START_SECONDS`."""

    def __init__(self, program: Path, gguf: Path, lanes: int, context: int):
        self.name = f"llama-server {gguf.stem.rpartition('-')[2]}"
        self._lanes = lanes
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        numbers = {"-np": lanes, "-c": lanes * context, "-t": cores(), "--port": port, "--cache-ram": 0}
        options = [str(part) for pair in numbers.items() for part in pair]
        self._command = [str(program), "-m", str(gguf), "--host", "127.0.0.1", "--no-webui", "-fa", "auto", *options]
        self._stderr = tempfile.TemporaryFile()
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=self._stderr)
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise self._failure(f"the server ended with status {self._process.returncode}")
            with suppress(OSError, ValueError), urllib.request.urlopen(f"{self._url}/health", timeout=10) as answer:
                if json.load(answer).get("status") == "ok":
                    return
            time.sleep(0.2)
        raise self._failure(f"the server did not answer within {START_SECONDS:.0f} s")

    def _failure(self, reason: str) -> SideFailed:
        return side_failure(reason, self._command, self._stderr)

    def run(self, requests: Sequence[MixedRequest], sampled: bool) -> float:
        settings = {**SAMPLED, "min_p": 0.0} if sampled else {"temperature": 0.0, "top_k": 1}

        def complete(request: MixedRequest) -> int:
            body = {"prompt": request.prompt, "n_predict": request.max_tokens, "ignore_eos": True, "stream": False}
            return int(self._post({**body, **settings, "cache_prompt": False})["tokens_predicted"])

        start = time.perf_counter()
        with ThreadPoolExecutor(2 * self._lanes) as clients:
            counts = list(clients.map(complete, requests))
        seconds = time.perf_counter() - start
        expected = [request.max_tokens for request in requests]
        if counts != expected:
            raise self._failure(f"expected {sum(expected)} tokens, the server generated {sum(counts)}")
        return seconds

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._url}/completion", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=3600) as answer:
                return json.load(answer)
        except (OSError, urllib.error.URLError) as error:
            raise self._failure(f"a request failed: {error}") from error

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._stderr.close()
