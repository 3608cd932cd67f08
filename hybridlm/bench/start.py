"""Time to the first token in a new process, with empty and full caches."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CHILD = """
import json, sys, time
began = time.time(), time.perf_counter()
import hybridlm
imported = time.perf_counter() - began[1]
from hybridlm.bench.start import start
print(json.dumps(start(began[0], imported, json.loads(sys.argv[1]))))
"""
"""Program of a start; its argument is `start`'s as JSON."""


def measure_starts(
    model: str, prompt: int, settings: Mapping[str, Any], warm: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Measure a start with an empty cache, and starts with the cache it filled.

    Args:
        settings: JSON arguments of `hybridlm.load`.

    Raises:
        ChildProcessError: a process ended with an error; with its output.
    """
    with tempfile.TemporaryDirectory(prefix="hybridlm-start-") as folder:
        arguments = {"model": model, "prompt": prompt, "settings": {**settings, "compilation_cache": folder}}
        starts = [_in_a_process(arguments) for _ in range(1 + warm)]
    return starts[0], starts[1:]


def start(began: float, imported: float, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Load a model in this process and generate one token.

    Args:
        began: `time.time()` of the first statement.
        imported: seconds of `import hybridlm`.
        arguments: `spawned` (`time.time()` of the process), `model`, `prompt` and `settings`.

    Returns:
        `parts`: seconds by part, one after the other; `total` is their sum. `steps`: `stored`, and `seconds` by
        part; steps load and compile in parallel threads.
    """
    from hybridlm.loading import load

    lm = load(arguments["model"], progress=False, **arguments["settings"])
    tokens = [5 + i % (lm.config.vocab_size - 5) for i in range(arguments["prompt"])]
    lm.generate([tokens], max_tokens=1, ignore_eos=True, progress=False)
    assert lm.start is not None
    parts = {"python": began - arguments["spawned"], "import": imported, **lm.start.parts}
    steps = {
        str(shape): {"stored": origin.stored, "seconds": {name: took for name, took in origin.seconds.items() if took}}
        for shape, origin in list(lm.engine.programs.origins.items())
    }
    return {"parts": parts, "total": sum(parts.values()), "steps": steps}


def _in_a_process(arguments: Mapping[str, Any]) -> dict[str, Any]:
    root = str(Path(__file__).parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", CHILD, json.dumps({**arguments, "spawned": time.time()})]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        raise ChildProcessError(f"a start failed with status {process.returncode}: {process.stderr.strip()}")
    return json.loads(process.stdout.splitlines()[-1])
