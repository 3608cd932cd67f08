"""A warm start: another process finds its steps, traces, proves and compiles none, and draws the same tokens."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from random_checkpoint import write_random_checkpoint
from text_checkpoint import write_text_checkpoint

CHILD = """
import json, logging, sys
import jax
import hybridlm
from hybridlm.programs import programs
from hybridlm.programs.loaded_code import note_code
from ir_passes.compile import compile_step, proving
from ir_passes.proof import lane_proof

class Lines(logging.Handler):
    lines = []

    def emit(self, record):
        self.lines.append(f"{record.levelname} {record.getMessage()}")

counts = {"trace": [], "lower": 0, "xla": 0, "compile_step": 0, "prove": 0, "audit": 0}
def happened(event, seconds, **more):
    if event.endswith("jaxpr_trace_duration") and more.get("fun_name") != "<lambda>":
        counts["trace"].append(more.get("fun_name"))
    counts["lower"] += event.endswith("jaxpr_to_mlir_module_duration")
    counts["xla"] += event.endswith("backend_compile_duration")
jax.monitoring.register_event_duration_secs_listener(happened)

def counted(module, function, name):
    original = getattr(module, function)
    def call(*args, **more):
        counts[name] += 1
        return original(*args, **more)
    setattr(module, function, call)
counted(programs, "compile_step", "compile_step")
counted(lane_proof, "prove_jaxpr", "prove")
counted(compile_step, "audit", "audit")
note_code()  # the counters are no other code
logging.getLogger("hybridlm").addHandler(Lines())
logging.getLogger("hybridlm").setLevel(logging.INFO)

path, settings, axes, prompts = json.loads(sys.argv[1])
mesh = hybridlm.mesh(**axes) if axes else None
lm = hybridlm.load(path, mesh=mesh, progress=False, **settings)
found = lm.generate(prompts, max_tokens=6, ignore_eos=True, logprobs=0)
print(json.dumps({
    "tokens": [one.token_ids for one in found],
    "logprobs": [list(map(float, one.logprobs)) for one in found],
    "counts": counts,
    "certificates": {name: json.loads(one.to_json()) for name, one in lm.certificates.items()},
    "report": [one.report() for one in lm.certificates.values()],
    "lines": Lines.lines,
}))
"""
SETTINGS: dict[str, Any] = {"lanes": 2, "context": 200, "dtype": "float32", "chunk": 5}
PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [9, 8, 7]]
NOTHING = {"trace": [], "lower": 0, "xla": 0, "compile_step": 0, "prove": 0, "audit": 0}


def run(path: Path, root: Path, axes: dict[str, int] | None = None, **settings: Any) -> dict[str, Any]:
    given = json.dumps([str(path), SETTINGS | settings, axes, PROMPTS])
    command = [sys.executable, "-W", "error", "-c", CHILD, given]
    environment = os.environ | {"PYTHONPATH": str(root)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def without_time(certificates: dict[str, Any]) -> dict[str, Any]:
    return {name: {**one, "stored": None} for name, one in certificates.items()}


def check_warm(cold: dict[str, Any], warm: dict[str, Any]) -> None:
    assert cold["counts"]["compile_step"] == len(cold["certificates"]) >= 3
    assert warm["counts"] == NOTHING
    assert (warm["tokens"], warm["logprobs"]) == (cold["tokens"], cold["logprobs"])
    # What was said of the executable, seconds included, is what was said when it was compiled.
    assert without_time(warm["certificates"]) == without_time(cold["certificates"])
    assert {one["stored"] for one in cold["certificates"].values()} == {False}
    assert {one["stored"] for one in warm["certificates"].values()} == {True}
    assert all("from the store" in text for text in warm["report"])
    for name in warm["certificates"]:
        assert any(line.startswith("INFO") and "from the store" in line and name in line for line in warm["lines"])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_checkpoint(tmp_path_factory.mktemp("text"))


@pytest.mark.slow
def test_second_process_compiles_nothing(checkpoint: Path, tmp_path: Path, root: Path) -> None:
    cache = str(tmp_path / "cache")
    cold = run(checkpoint, root, compilation_cache=cache)
    check_warm(cold, run(checkpoint, root, compilation_cache=cache))
    files = sorted((tmp_path / "cache" / "steps").iterdir())
    assert len(files) >= len(cold["certificates"])

    other = run(checkpoint, root, compilation_cache=cache, certify="warn")
    assert other["counts"]["compile_step"] == len(other["certificates"]) and other["tokens"] == cold["tokens"]
    unkept = run(checkpoint, root, compilation_cache=False)
    assert unkept["counts"]["compile_step"] == len(unkept["certificates"]) and unkept["tokens"] == cold["tokens"]

    for file in files:
        content = bytearray(file.read_bytes())
        content[-100] ^= 1
        file.write_bytes(content)
    damaged = run(checkpoint, root, compilation_cache=cache)
    assert damaged["tokens"] == cold["tokens"]
    assert damaged["counts"]["compile_step"] == len(cold["certificates"])
    assert len([line for line in damaged["lines"] if line.startswith("WARNING")]) == len(cold["certificates"])
    check_warm(damaged, run(checkpoint, root, compilation_cache=cache))


@pytest.mark.slow
def test_mesh_has_it_too(tmp_path: Path, root: Path) -> None:
    """Two by two of the eight virtual devices: lanes and heads are split."""
    directory = write_random_checkpoint(
        "dense_base", tmp_path / "model", num_hidden_layers=2, full_attention_interval=2
    )
    cold, warm = (
        run(directory, root, {"data": 2, "model": 2}, compilation_cache=str(tmp_path / "cache")) for _ in range(2)
    )
    check_warm(cold, warm)
    other = run(directory, root, {"data": 1, "model": 2}, compilation_cache=str(tmp_path / "cache"))
    assert other["counts"]["compile_step"] == len(other["certificates"])
