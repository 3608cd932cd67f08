"""Steps as XLA compiles them for GPUs and TPUs, without one (extras target-cuda, target-tpu).

scripts/write_target_tables.py compiles the steps of every family and fails at a finding;
tests/ir_passes/xla_audit/test_target_mutants.py breaks audited programs by hand.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jax_settings import jax_settings
from virtual_targets import golden_engine

from hybridlm import EngineConfig
from hybridlm.target_report import Recipe, StepReport, report_on, target_engine
from ir_passes import FindingKind
from ir_passes.targets import TargetError, read_target

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
SIZES: dict[str, Any] = {"lanes": 4, "context": 64, "chunk": 8, "dtype": "float32"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    with jax_settings(jax_compilation_cache_dir=str(tmp_path / "cache")):
        yield


def engine(name: str, target: str, **sizes: Any) -> Any:
    return golden_engine(name, target, **{"context": 64, **sizes})


PLATFORMS = [
    pytest.param("nvidia-h100", marks=pytest.mark.target_cuda),
    pytest.param("tpu-v5e", marks=pytest.mark.target_tpu),
]
STEPS = [("generate", 4, 8), ("generate", 4, 1)]


@pytest.mark.parametrize("target", PLATFORMS)
@pytest.mark.parametrize("mesh", [{"expert": 4}, {"data": 2, "expert": 2}])
def test_mesh_of_experts(mesh: dict[str, int], target: str, tmp_path: Path) -> None:
    """Other meshes, and all families on them, are rows of docs/tables/target-tables.md."""
    for step in steps_on_a_mesh("sparse_base", target, mesh, STEPS, tmp_path):
        assert step.faults == () and step.certificate is not None and step.certificate.not_audited is None
        assert step.kernels > 0 and step.floor_moved is not None and step.moved > step.floor_moved


@pytest.mark.target_cuda
@pytest.mark.parametrize(("name", "step"), [("mamba2_base", ("generate", 4, 8)), ("falcon_base", ("verify", 4, 5))])
def test_states_of_a_convolution_are_not_turned(name: str, step: Any, tmp_path: Path) -> None:
    """Products on a mesh transpose Mamba2's window; a copy used to transpose the state back."""
    (report,) = steps_on_a_mesh(name, "nvidia-h100", {"data": 2, "model": 2}, [step], tmp_path)
    assert report.faults == () and report.certificate is not None and report.certificate.copies == ()


@pytest.mark.target_tpu
def test_logits_of_one_lane_a_device_are_gathered_by_a_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """libtpu computes these gathers so; without the audit's rule they are findings."""

    def compiled() -> StepReport:
        mesh, steps = {"data": 2, "model": 2}, [("generate", 2, 1)]
        return steps_on_a_mesh("dense_interval", "tpu-v5e", mesh, steps, tmp_path, lanes=2)[0]

    step = compiled()
    assert step.faults == () and step.certificate is not None and step.certificate.not_audited is None
    assert "all_gather" in {collective.operation for collective in step.certificate.collectives}
    monkeypatch.setattr("ir_passes.xla_audit.collectives.padded_gather", lambda *_: None)
    with jax_settings(jax_compilation_cache_dir=str(tmp_path / "other")):
        assert any(fault.startswith(FindingKind.MISSING_COLLECTIVE) for fault in compiled().faults)


def steps_on_a_mesh(
    name: str, target: str, mesh: dict[str, int], steps: list[Any], folder: Path, **sizes: Any
) -> tuple[StepReport, ...]:
    """Return the reports on steps of a checkpoint on four devices."""
    fields = json.loads((GOLDEN / name / "config.json").read_text())
    config = folder / "config.json"
    config.write_text(json.dumps(fields | {"vocab_size": 96}))  # 97 rows cannot be split
    options = EngineConfig(**SIZES | sizes)
    small = target_engine(read_target(f"{target}:4"), options, config=config, mesh=mesh)
    return report_on(small, [small.shape(*step) for step in steps]).steps


@pytest.mark.target_tpu
@pytest.mark.parametrize(("name", "sizes"), [
    ("kimi_base", {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_head_dim": 76, "model_max_length": 4096}),
    ("lfm2_base", {"hidden_size": 256, "max_position_embeddings": 4096}),
])  # fmt: skip
def test_caches_of_heads_that_fill_no_row_of_a_tile(name: str, sizes: dict[str, int], tmp_path: Path) -> None:
    """No cache with heads of 576 or 64 numbers is copied; both exceed on-chip memory."""
    config, of = tmp_path / "config.json", {"lanes": 64, "context": 4096, "dtype": "bfloat16"}
    config.write_text(json.dumps(json.loads((GOLDEN / name / "config.json").read_text()) | sizes))
    small = target_engine(read_target("tpu-v5e"), EngineConfig(**SIZES | of), config=config)
    (step,) = report_on(small, [small.shape("generate", 64, 1)]).steps
    assert step.faults == () and step.certificate is not None and step.certificate.not_audited is None
    assert step.floor_moved is not None and step.floor_moved < step.moved < 2.2 * step.floor_moved


@pytest.mark.target_cuda
@pytest.mark.parametrize("target", ["nvidia-a100", "nvidia-a6000", "nvidia-l4", "nvidia-h200", "nvidia-b200"])
def test_other_gpus(target: str) -> None:
    one_decode_step(target)


@pytest.mark.target_cuda
@pytest.mark.parametrize("tokens", [1, 8])
@pytest.mark.parametrize("target", ["nvidia-l4", "nvidia-rtx4090", "nvidia-a100", "nvidia-b200"])
def test_steps_with_kernels_on_other_gpus(target: str, tokens: int) -> None:
    """All their kernels compile, and their reads are counted."""
    sparse = engine("sparse_base", target, kernels="auto")
    (step,) = report_on(sparse, [sparse.shape("generate", 4, tokens)]).steps
    names = {kernel.name for kernel in step.resources}
    assert names >= {"recurrent_step_kernel", "conv_step_kernel", "expert_rows_kernel", "filter_cutoffs_kernel"}
    assert not step.faults and step.uncounted == ()
    assert step.certificate is not None and step.certificate.not_audited is None


@pytest.mark.target_cuda
def test_registers_of_a_steps_kernels() -> None:
    """A stored report has them too; a kernel above the limit of spills is a fault of the step."""
    dense = engine("dense_interval", "nvidia-h100", kernels="auto")
    (step,) = report_on(dense, [dense.shape("generate", 4, 1)]).steps
    names = {kernel.name for kernel in step.resources}
    assert names >= {"recurrent_step_kernel", "conv_step_kernel"} and step.faults == ()
    assert all(0 < kernel.registers <= 255 and kernel.threads % 32 == 0 for kernel in step.resources)
    (stored,) = report_on(dense, [dense.shape("generate", 4, 1)]).steps
    assert stored.reused and stored.resources == step.resources
    spilled = tuple(replace(kernel, spilled=129) for kernel in step.resources[:1])
    spilling = replace(step, resources=spilled)
    assert spilling.spilling == spilled and [*spilling.faults] == [*spilled[0].faults()] != []
    program = dense.program(dense.shape("generate", 4, 1))
    program.__dict__.pop("kernel_resources", None)
    program._kernel_programs = ()
    with pytest.raises(TargetError, match="dumped no PTX of .*recurrent_step_kernel"):
        program.kernel_resources  # noqa: B018


@pytest.mark.target_tpu
@pytest.mark.parametrize("target", ["tpu-v4", "tpu-v5p", "tpu-v6e"])
def test_other_tpus(target: str) -> None:
    one_decode_step(target)


def one_decode_step(target: str) -> None:
    dense = engine("dense_interval", target)
    (step,) = report_on(dense, [dense.shape("generate", 4, 1)]).steps
    assert not step.faults and step.certificate is not None and step.certificate.not_audited is None
    assert step.certificate.versions.device == read_target(target).device_kind


WIDE = {
    "dense_interval": {"hidden_size": 256, "intermediate_size": 1024},
    "sparse_base": {"hidden_size": 256, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512},
}


@pytest.mark.target_cuda
@pytest.mark.parametrize("name", WIDE)
def test_steps_with_packed_weights_hold_no_numbers_of_them(name: str, tmp_path: Path) -> None:
    """Scratch equals plain weights' scratch, also for prompts of several kernel tiles."""
    config, of = tmp_path / "config.json", {"lanes": 16, "context": 512, "chunk": 256, "dtype": "bfloat16"}
    config.write_text(json.dumps(json.loads((GOLDEN / name / "config.json").read_text()) | WIDE[name]))
    reports = {}
    for scheme in (None, "int8"):
        recipe = None if scheme is None else Recipe.of(scheme)
        packed = target_engine(
            read_target("nvidia-h100"), EngineConfig(kernels="auto", **of), config=config, recipe=recipe
        )
        steps = [
            packed.shape("generate", 16, 1),
            packed.shape("generate", packed.prefill_lanes, 256),
            packed.shape("score", 16, 64, top=0),
        ]
        reports[scheme] = report_on(packed, steps).steps
    for plain, packed in zip(reports[None], reports["int8"], strict=True):
        assert packed.faults == () and packed.certificate is not None
        assert packed.scratch <= 1.1 * plain.scratch and packed.moved < plain.moved
        assert packed.floor_moved is not None and plain.floor_moved is not None
        assert packed.floor_moved < plain.floor_moved
