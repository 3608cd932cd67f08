"""A warm start in another process: no tracing, proof or compilation, the same tokens."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from random_checkpoint import write_random_checkpoint

CHILD = """
import json, logging, sys
import jax
import hybridlm
from hybridlm.programs import programs
from ir_passes.compile import certifying, proving
from ir_passes.files.loaded_code import note_code
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
counted(certifying, "audit", "audit")
note_code("hybridlm", "models", "ir_passes")  # the counters are no other code
logging.getLogger("hybridlm").addHandler(Lines())
logging.getLogger("hybridlm").setLevel(logging.INFO)

path, settings, axes, prompts, logprobs = json.loads(sys.argv[1])
mesh = hybridlm.mesh(**axes) if axes else None
lm = hybridlm.load(path, mesh=mesh, progress=False, **settings)
found = lm.generate(prompts, max_tokens=6, ignore_eos=True, logprobs=logprobs)
scored = lm.score(prompts)
print(json.dumps({
    "tokens": [one.token_ids for one in found],
    "logprobs": [list(map(float, one.logprobs or ())) for one in found],
    "scores": [list(map(float, one.logprobs[1:])) for one in scored],
    "stored": [one.stored for one in lm.engine.programs.origins.values()],
    "counts": counts,
    "certificates": {name: json.loads(one.to_json()) for name, one in lm.certificates.items()},
    "report": [one.report() for one in lm.certificates.values()],
    "lines": Lines.lines,
}))
"""
SETTINGS: dict[str, Any] = {"lanes": 2, "context": 200, "dtype": "float32", "chunk": 5}
PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [9, 8, 7]]
NOTHING = {"trace": [], "lower": 0, "xla": 0, "compile_step": 0, "prove": 0, "audit": 0}


def run(
    path: Path, root: Path, axes: dict[str, int] | None = None, logprobs: int | None = 0, **settings: Any
) -> dict[str, Any]:
    text = json.dumps([str(path), SETTINGS | settings, axes, PROMPTS, logprobs])
    return json.loads(python(root, "-W", "error", "-c", CHILD, text).stdout)


def python(root: Path, *arguments: str, home: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a process; `home` holds its own cache instead of the tests' cache."""
    variables = os.environ | {"PYTHONPATH": str(root)}
    if home is not None:
        variables["XDG_CACHE_HOME"] = str(home)
        variables.pop("JAX_COMPILATION_CACHE_DIR")
    command = [sys.executable, *arguments]
    result = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result


def without_time(certificates: dict[str, Any]) -> dict[str, Any]:
    return {name: {**certificate, "stored": None} for name, certificate in certificates.items()}


def check_warm(cold: dict[str, Any], warm: dict[str, Any]) -> None:
    assert cold["counts"]["compile_step"] == len(cold["certificates"]) >= 4
    assert warm["counts"] == NOTHING
    assert all(warm["stored"]) and not any(cold["stored"])
    assert all(warm[name] == cold[name] for name in ("tokens", "logprobs", "scores"))
    # The stored statements, seconds included, are from the compilation.
    assert without_time(warm["certificates"]) == without_time(cold["certificates"])
    assert {row["stored"] for row in cold["certificates"].values()} == {False}
    assert {row["stored"] for row in warm["certificates"].values()} == {True}
    assert all("from the store" in text for text in warm["report"])
    for name in warm["certificates"]:
        assert any(line.startswith("INFO") and "from the store" in line and name in line for line in warm["lines"])


# By default two processes of test_load.py show that the second finds the steps of the first.
@pytest.mark.long
def test_second_process_compiles_nothing(text_path: Path, tmp_path: Path, root: Path) -> None:
    cache = str(tmp_path / "cache")
    cold = run(text_path, root, compilation_cache=cache)
    check_warm(cold, run(text_path, root, compilation_cache=cache))
    assert len(list((tmp_path / "cache" / "steps").iterdir())) >= len(cold["certificates"])


@pytest.mark.long
def test_other_settings_and_damaged_files_are_compiled_anew(text_path: Path, tmp_path: Path, root: Path) -> None:
    cache = str(tmp_path / "cache")
    cold = run(text_path, root, compilation_cache=cache)
    files = sorted((tmp_path / "cache" / "steps").iterdir())
    other = run(text_path, root, compilation_cache=cache, certify="warn")
    assert other["counts"]["compile_step"] == len(other["certificates"]) and other["tokens"] == cold["tokens"]

    for file in files:
        content = bytearray(file.read_bytes())
        content[-100] ^= 1
        file.write_bytes(content)
    damaged = run(text_path, root, compilation_cache=cache)
    assert damaged["tokens"] == cold["tokens"]
    assert damaged["counts"]["compile_step"] == len(cold["certificates"])
    assert len([line for line in damaged["lines"] if line.startswith("WARNING")]) == len(cold["certificates"])
    check_warm(damaged, run(text_path, root, compilation_cache=cache))


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize("axes", [None, {"data": 2}, {"model": 2}], ids=["one device", "lanes", "heads"])
def test_after_hybridlm_warmup_a_process_compiles_nothing(axes: dict[str, int] | None, tmp_path: Path, root: Path):
    directory = write_random_checkpoint(
        "dense_base", tmp_path / "model", num_hidden_layers=2, full_attention_interval=2
    )
    options = [text for name, value in SETTINGS.items() for text in (f"--{name}", str(value))]
    options += [] if axes is None else ["--mesh", ",".join(f"{name}={size}" for name, size in axes.items())]
    command = ["-m", "hybridlm", "warmup", "-m", str(directory), *options]
    result = python(root, *command, home=tmp_path / "home")
    assert "compiled" in result.stdout and "from the store" not in result.stdout
    repeat = python(root, *command, "-v", home=tmp_path / "home")
    assert ": from the store in" in repeat.stderr and ": compiled in" not in repeat.stderr

    cache = str(tmp_path / "home" / "hybridlm" / "xla")
    output = run(directory, root, axes, None, compilation_cache=cache)
    assert output["counts"] == NOTHING and all(output["stored"]) and len(output["stored"]) >= 4
    with_logprobs = run(directory, root, axes, 0, compilation_cache=cache)
    assert with_logprobs["counts"]["compile_step"] > 0 and with_logprobs["tokens"] == output["tokens"]
