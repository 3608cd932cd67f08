"""Steps for GPUs run as one CUDA graph without loops or branches on the host."""

from pathlib import Path

import pytest
from certificate_table import GOLDEN
from graph_thunks import ASKING_THE_HOST, thunks_outside_graphs

from hybridlm import EngineConfig
from hybridlm.programs import programs
from hybridlm.target_report import target_engine
from ir_passes.targets import read_target


@pytest.mark.target_cuda
@pytest.mark.parametrize(("kernels", "tokens"), [("off", 1), ("auto", 1), ("off", 64)])
def test_a_step_does_not_ask_the_host(
    kernels: str, tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoding, and a prompt of two chunks: XLA would make its slices copies by the host."""
    monkeypatch.setitem(programs.OPTIONS, "gpu", {**programs.OPTIONS["gpu"], "xla_dump_to": str(tmp_path)})
    options = EngineConfig(lanes=2, context=512, chunk=64, dtype="bfloat16", kernels=kernels)
    engine = target_engine(read_target("nvidia-h100"), options, config=GOLDEN / "sparse_base" / "config.json")
    step = engine.program(engine.shape("generate", 2, tokens))
    assert not step.certificate.faults
    kinds = set(thunks_outside_graphs(tmp_path))
    assert "CommandBuffer" in kinds and not kinds & ASKING_THE_HOST


def test_flags_of_the_user_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    assert programs._options("gpu") == programs.OPTIONS["gpu"] and programs._options("cpu") == {}
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_command_buffer=")
    assert set(programs._options("gpu")) == set(programs.OPTIONS["gpu"]) - {"xla_gpu_enable_command_buffer"}
