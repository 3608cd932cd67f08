"""Mixed batches through vLLM, in a process of another Python environment, which reads requests as lines of JSON.

vLLM pins its versions of torch and transformers, so that it cannot be installed beside this package.
"""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hybridlm.bench.mixed import SAMPLED, MixedRequest
from hybridlm.bench.sides import SideFailed

WORKER = Path(__file__).parent / "vllm_worker.py"


class VllmSide:
    """A vLLM process with a checkpoint.

    Args:
        python: interpreter of an environment with vLLM.
        model: the checkpoint.
        dtype: dtype of weights and computation.
        lanes: sequences at a time.
        context: maximum tokens of a sequence.

    Raises:
        SideFailed: the process ended while it loaded the model.
    """

    name = "vllm"

    def __init__(self, python: Path, model: Path, dtype: str, lanes: int, context: int):
        self._command = [str(python), str(WORKER), str(model), dtype, str(lanes), str(context)]
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
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
        status = self._process.wait()
        raise SideFailed(f"vLLM ended with status {status}; the command was: {' '.join(self._command)}")

    def run(self, requests: Sequence[MixedRequest], sampled: bool) -> float:
        """See `MixedSide.run`."""
        assert self._process.stdin is not None
        settings = dict(SAMPLED) if sampled else {"temperature": 0.0}
        body = {"prompts": [r.prompt for r in requests], "max_tokens": [r.max_tokens for r in requests]}
        try:
            self._process.stdin.write(json.dumps({**body, "settings": settings}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise SideFailed(f"vLLM takes no requests: {error}; the command was: {' '.join(self._command)}") from error
        result = self._read()
        expected = sum(request.max_tokens for request in requests)
        if result["tokens"] != expected:
            raise SideFailed(f"vLLM generated {result['tokens']} tokens, expected {expected}")
        return float(result["seconds"])

    def close(self) -> None:
        """See `MixedSide.close`."""
        self._process.terminate()
        with self._process:  # closes its pipes and waits
            pass
