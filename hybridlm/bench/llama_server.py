"""Mixed batches through llama-server: one slot per sequence, one HTTP client per request."""

import json
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

START_SECONDS = 300.0


class LlamaServerSide:
    """A llama-server process on this machine.

    Raises:
        SideFailed: no answer within `START_SECONDS`.
    """

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
        """Return the seconds from the first submission to the last token."""
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
