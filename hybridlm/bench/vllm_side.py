"""Mixed batches through vLLM, in another environment: it pins torch and transformers."""

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hybridlm.bench.mixed import SAMPLED, MixedRequest
from hybridlm.bench.sides import SideFailed, side_failure

WORKER = Path(__file__).parent / "vllm_worker.py"


class VllmSide:
    """A vLLM process with a checkpoint."""

    name = "vllm"

    def __init__(self, python: Path, model: Path, dtype: str, lanes: int, context: int):
        # -I keeps this folder, with names of the standard library, out of the import path.
        self._command = [str(python), "-I", str(WORKER), str(model), dtype, str(lanes), str(context)]
        self._stderr = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, text=True
        )
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    def _read(self) -> dict[str, Any]:
        """Return the next result; vLLM prints other lines to the same stream."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise self._failure(f"vLLM ended with status {self._process.wait()}")

    def _failure(self, reason: str) -> SideFailed:
        return side_failure(reason, self._command, self._stderr)

    def run(self, requests: Sequence[MixedRequest], sampled: bool) -> float:
        assert self._process.stdin is not None
        settings = dict(SAMPLED) if sampled else {"temperature": 0.0}
        body = {"prompts": [r.prompt for r in requests], "max_tokens": [r.max_tokens for r in requests]}
        try:
            self._process.stdin.write(json.dumps({**body, "settings": settings}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._failure(f"vLLM takes no requests: {error}") from error
        result = self._read()
        expected = sum(request.max_tokens for request in requests)
        if result["tokens"] != expected:
            raise self._failure(f"vLLM generated {result['tokens']} tokens, expected {expected}")
        return float(result["seconds"])

    def close(self) -> None:
        self._process.terminate()
        with self._process:  # closes its pipes and waits
            self._stderr.close()
