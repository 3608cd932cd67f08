"""Peak anonymous memory of loading, measured in their own processes."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LOADING = Path(__file__).resolve().parents[2] / "reference" / "processes" / "load_memory.py"
MIB = 1 << 20

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="RssAnon is Linux's; no /proc/self/status here"),
]


def loading(root: Path, *arguments: object, devices: int = 8) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(root),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, LOADING, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def figures(process: subprocess.Popen[str]) -> dict[str, Any]:
    message, faults = process.communicate(timeout=240)
    assert process.returncode == 0, faults
    return json.loads(message)


def require_peak(result: dict[str, Any], tensors: int) -> None:
    """Check that the peak is at most 1.05 times the kept bytes plus `tensors`."""
    # A measurement that saw nothing would pass too.
    assert result["kept"] >= 150 * MIB and result["end"] > 0.95 * result["kept"]
    limit = 1.05 * result["kept"] + tensors
    assert result["peak"] <= limit, f"peak {result['peak']:,} bytes, limit {limit:,.0f}"


@pytest.mark.parametrize(("stored", "wanted", "devices"), [
    ("bfloat16", "bfloat16", 1), ("bfloat16", "float32", 1), ("float16", "bfloat16", 1), ("bfloat16", "bfloat16", 4),
])  # fmt: skip
def test_peak_is_the_arrays_kept_and_two_tensors(tmp_path: Path, root: Path, stored: str, wanted: str, devices: int):
    """The peak has the two largest tensors; the expert stack is eight times larger."""
    # Tensors are 16 MiB in the file whatever dtype they become.
    require_peak(figures(loading(root, "toy", tmp_path, stored, wanted, devices)), 2 * 16 * MIB)


@pytest.mark.parametrize("wanted", ["bfloat16", "float32"])
def test_peak_of_a_model(tmp_path: Path, root: Path, wanted: str) -> None:
    """Peak of `hybridlm.load`; the largest tensors are the embedding and head, 4 MiB each."""
    require_peak(figures(loading(root, "lm", tmp_path, "bfloat16", wanted)), 2 * 4 * MIB)


@pytest.mark.parametrize(
    ("scheme", "dequantise"), [("fp8-block", ""), ("int8", ""), ("fp8-block", "bfloat16"), ("int8", "bfloat16")]
)
def test_peak_of_a_quantised_model(tmp_path: Path, root: Path, scheme: str, dequantise: str) -> None:
    """Loading needs the two largest matrices (1024 x 24576 numbers) and the model at most."""
    result = figures(loading(root, "packed", tmp_path, scheme, dequantise, devices=1))
    require_peak(result, 2 * 2 * 1024 * 24576)


@pytest.mark.parametrize(("kind", "dequantise"), [("Q8_0", ""), ("Q5_K", ""), ("Q4_K", "bfloat16")])
def test_peak_of_a_gguf_file(tmp_path: Path, root: Path, kind: str, dequantise: str) -> None:
    """A GGUF file has the same limit; another process writes it to keep memory fresh."""
    figures(loading(root, "write", tmp_path, kind, devices=1))
    require_peak(figures(loading(root, "gguf", tmp_path, kind, dequantise, devices=1)), 2 * 2 * 1024 * 24576)


def test_a_process_reads_its_own_experts_only(tmp_path: Path, root: Path) -> None:
    """A process with half of 64 experts holds its shard and the largest tensor."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Written once, and not by both at a time.
    full = figures(loading(root, "toy", tmp_path, "bfloat16", "bfloat16", 1))
    running = [
        loading(root, "share", tmp_path, "bfloat16", "bfloat16", port, 2, number, devices=1) for number in range(2)
    ]
    every = {f"expert.{e}.{part}" for e in range(64) for part in ("gate", "up")}
    assert every <= set(full["reads"])
    for number, process in enumerate(running):
        result = figures(process)
        local = {f"expert.{e}.{part}" for e in range(32 * number, 32 * number + 32) for part in ("gate", "up")}
        assert set(result["reads"]) & every == local
        assert len(result["reads"]) == len(set(result["reads"]))
        assert result["kept"] == full["kept"] - 64 * MIB
        require_peak(result, 16 * MIB)
