"""Time to the first token, each start in a process of its own: with an empty cache, and with a full one."""

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
"""The program of a start. Its argument is that of `start`, as JSON."""


class StartFailed(ChildProcessError):
    """A process that was to be measured has failed."""


def measure_starts(
    model: str, prompt: int, settings: Mapping[str, Any], warm: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Measure a start with an empty cache, and others that find what it kept.

    Args:
        model: directory of a checkpoint, or its id on the Hub.
        prompt: tokens of the prompt.
        settings: further arguments of `hybridlm.load`, which JSON can hold.
        warm: number of starts with a full cache, one after the other.

    Returns:
        The cold start and the warm ones, as `start` returns them.

    Raises:
        StartFailed: a process ended with an error; the message is what it wrote.
    """
    with tempfile.TemporaryDirectory(prefix="hybridlm-start-") as folder:
        given = {"model": model, "prompt": prompt, "settings": {**settings, "compilation_cache": folder}}
        found = [_in_a_process(given) for _ in range(1 + warm)]
    return found[0], found[1:]


def start(began: float, imported: float, given: Mapping[str, Any]) -> dict[str, Any]:
    """Load a model in this process and generate one token.

    Args:
        began: `time.time()` of the first statement.
        imported: seconds of `import hybridlm`.
        given: `spawned` (`time.time()` when the process was made), `model`, `prompt` and `settings`.

    Returns:
        `parts`: part -> seconds, one after the other, of which `total` is the sum. `steps`: step -> `stored`, and
        `seconds` by part; steps are loaded and compiled in threads, beside the parts and beside each other.
    """
    from hybridlm.loading import load

    lm = load(given["model"], progress=False, **given["settings"])
    tokens = [5 + i % (lm.config.vocab_size - 5) for i in range(given["prompt"])]
    lm.generate([tokens], max_tokens=1, ignore_eos=True, progress=False)
    assert lm.start is not None
    parts = {"python": began - given["spawned"], "import": imported, **lm.start.parts}
    steps = {
        str(shape): {"stored": one.stored, "seconds": {name: took for name, took in one.seconds.items() if took}}
        for shape, one in list(lm.engine.programs.origins.items())
    }
    return {"parts": parts, "total": sum(parts.values()), "steps": steps}


def _in_a_process(given: Mapping[str, Any]) -> dict[str, Any]:
    root = str(Path(__file__).parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", CHILD, json.dumps({**given, "spawned": time.time()})]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise StartFailed(f"a start failed with status {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])
