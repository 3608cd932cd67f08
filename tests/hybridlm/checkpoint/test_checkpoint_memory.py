"""Peak anonymous memory of loading, measured in processes of their own."""

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
    said, faults = process.communicate(timeout=240)
    assert process.returncode == 0, faults
    return json.loads(said)


def require_peak(found: dict[str, Any], tensors: int) -> None:
    """Check that the peak is at most 1.05 times what is kept plus this many bytes of tensors."""
    # A measurement that saw nothing would pass too.
    assert found["kept"] >= 150 * MIB and found["end"] > 0.95 * found["kept"]
    limit = 1.05 * found["kept"] + tensors
    assert found["peak"] <= limit, f"peak {found['peak']:,} bytes, limit {limit:,.0f}"


@pytest.mark.parametrize(
    ("stored", "wanted", "devices"),
    [
        ("bfloat16", "bfloat16", 1),
        ("bfloat16", "float32", 1),
        ("float16", "bfloat16", 1),
        ("bfloat16", "bfloat16", 4),
    ],
)
def test_peak_is_the_arrays_kept_and_two_tensors(
    tmp_path: Path, root: Path, stored: str, wanted: str, devices: int
) -> None:
    """The two largest tensors of the file; the stack of experts is eight times as large as either."""
    # Tensors are 16 MiB in the file whatever dtype they become.
    require_peak(figures(loading(root, "toy", tmp_path, stored, wanted, devices)), 2 * 16 * MIB)


@pytest.mark.parametrize("wanted", ["bfloat16", "float32"])
def test_peak_of_a_model(tmp_path: Path, root: Path, wanted: str) -> None:
    """Peak of `hybridlm.load` itself; the largest tensors are the embedding and the head, 4 MiB each in the file."""
    require_peak(figures(loading(root, "lm", tmp_path, "bfloat16", wanted)), 2 * 4 * MIB)


@pytest.mark.parametrize(
    ("scheme", "dequantise"), [("fp8-block", ""), ("int8", ""), ("fp8-block", "bfloat16"), ("int8", "bfloat16")]
)
def test_peak_of_a_quantised_model(tmp_path: Path, root: Path, scheme: str, dequantise: str) -> None:
    """Loading needs at most two of the largest matrices, 1024 x 24576 numbers of 2 bytes, beside the model."""
    found = figures(loading(root, "packed", tmp_path, scheme, dequantise, devices=1))
    require_peak(found, 2 * 2 * 1024 * 24576)


@pytest.mark.parametrize(("kind", "dequantise"), [("Q8_0", ""), ("Q5_K", ""), ("Q4_K", "bfloat16")])
def test_peak_of_a_gguf_file(tmp_path: Path, root: Path, kind: str, dequantise: str) -> None:
    """The limit of a quantised model. Another process writes the file: memory freed here could be used again unseen."""
    figures(loading(root, "write", tmp_path, kind, devices=1))
    require_peak(figures(loading(root, "gguf", tmp_path, kind, dequantise, devices=1)), 2 * 2 * 1024 * 24576)


def test_a_process_reads_its_own_experts_only(tmp_path: Path, root: Path) -> None:
    """A process of two that share 64 experts has at most its shard and the largest tensor in memory."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Written once, and not by both at a time.
    whole = figures(loading(root, "toy", tmp_path, "bfloat16", "bfloat16", 1))
    running = [
        loading(root, "share", tmp_path, "bfloat16", "bfloat16", port, 2, number, devices=1) for number in range(2)
    ]
    every = {f"expert.{e}.{part}" for e in range(64) for part in ("gate", "up")}
    assert every <= set(whole["reads"])
    for number, process in enumerate(running):
        found = figures(process)
        own = {f"expert.{e}.{part}" for e in range(32 * number, 32 * number + 32) for part in ("gate", "up")}
        assert set(found["reads"]) & every == own
        assert len(found["reads"]) == len(set(found["reads"]))
        assert found["kept"] == whole["kept"] - 64 * MIB
        require_peak(found, 16 * MIB)
