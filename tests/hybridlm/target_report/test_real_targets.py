"""Steps as XLA compiles them for GPUs and TPUs, without one (extras target-cuda, target-tpu).

scripts/write_target_tables.py compiles the steps of every family and fails at a finding. An audit of a program
for each platform is broken by hand in each way that it has to see: mutants of buffer assignments.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jax_settings import jax_settings
from paged_shapes import paged

from hybridlm import EngineConfig
from hybridlm.compiler.contract import BoundContract
from hybridlm.engine.engine import Engine
from hybridlm.programs.shapes import Shape
from hybridlm.target_report import Recipe, StepReport, report_on, target_engine
from ir_passes import FindingKind
from ir_passes.compile import stages as compiling
from ir_passes.compile.buffer_assignment import CompiledProgram
from ir_passes.targets import TargetError, read_target
from ir_passes.xla_audit.audit import audit_executable
from ir_passes.xla_audit.dataflow import LiveValues, live_values
from ir_passes.xla_audit.hlo import read
from ir_passes.xla_audit.program import Buffers, Executable, Slice

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
SIZES: dict[str, Any] = {"lanes": 4, "context": 64, "chunk": 8, "dtype": "float32"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    with jax_settings(jax_compilation_cache_dir=str(tmp_path / "cache")):
        yield


def engine(name: str, target: str, **sizes: Any) -> Engine:
    return target_engine(read_target(target), EngineConfig(**SIZES | sizes), config=GOLDEN / name / "config.json")


PLATFORMS = [
    pytest.param("nvidia-h100", marks=pytest.mark.target_cuda),
    pytest.param("tpu-v5e", marks=pytest.mark.target_tpu),
]
STEPS = [Shape("generate", 4, 8, 4), Shape("generate", 4, 1, 4)]


@pytest.mark.parametrize("target", PLATFORMS)
@pytest.mark.parametrize("mesh", [{"expert": 4}, {"data": 2, "expert": 2}])
def test_mesh_of_experts(mesh: dict[str, int], target: str, tmp_path: Path) -> None:
    """Other meshes, and all families on them, are rows of docs/tables/target-tables.md."""
    for step in steps_on_a_mesh("sparse_base", target, mesh, STEPS, tmp_path):
        assert step.faults == () and step.certificate is not None and step.certificate.not_audited is None
        assert step.kernels > 0 and step.floor_moved is not None and step.moved > step.floor_moved


@pytest.mark.target_cuda
@pytest.mark.parametrize(
    ("name", "shape"), [("mamba2_base", Shape("generate", 4, 8, 4)), ("falcon_base", Shape("verify", 4, 5, 4))]
)
def test_states_of_a_convolution_are_not_turned(name: str, shape: Shape, tmp_path: Path) -> None:
    """Products on a mesh transpose Mamba2's window; a copy used to transpose the state back."""
    (step,) = steps_on_a_mesh(name, "nvidia-h100", {"data": 2, "model": 2}, [shape], tmp_path)
    assert step.faults == () and step.certificate is not None and step.certificate.copies == ()


@pytest.mark.target_tpu
def test_logits_of_one_lane_a_device_are_gathered_by_a_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """libtpu computes these gathers so; without the audit's rule they are findings."""

    def compiled() -> StepReport:
        shape = Shape("generate", 2, 1, 2)
        return steps_on_a_mesh("dense_interval", "tpu-v5e", {"data": 2, "model": 2}, [shape], tmp_path, lanes=2)[0]

    step = compiled()
    assert step.faults == () and step.certificate is not None and step.certificate.not_audited is None
    assert "all_gather" in {collective.operation for collective in step.certificate.collectives}
    monkeypatch.setattr("ir_passes.xla_audit.collectives.padded_gather", lambda *_: None)
    with jax_settings(jax_compilation_cache_dir=str(tmp_path / "other")):
        assert any(fault.startswith(FindingKind.MISSING_COLLECTIVE) for fault in compiled().faults)


def steps_on_a_mesh(
    name: str, target: str, mesh: dict[str, int], shapes: list[Shape], folder: Path, **sizes: Any
) -> tuple[StepReport, ...]:
    """Return the reports on steps of a checkpoint on four devices."""
    fields = json.loads((GOLDEN / name / "config.json").read_text())
    config = folder / "config.json"
    config.write_text(json.dumps(fields | {"vocab_size": 96}))  # 97 rows cannot be split
    options = EngineConfig(**SIZES | sizes)
    small = target_engine(read_target(f"{target}:4"), options, config=config, mesh=mesh)
    return report_on(small, [paged(small, shape) for shape in shapes]).steps


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


Mutant = Callable[[Executable, LiveValues, BoundContract], Executable]


def moved(executable: Executable, key: tuple[int, tuple[int, ...]], place: Slice) -> Executable:
    buffers = executable.buffers
    return replace(executable, buffers=Buffers(buffers.allocations, {**buffers.slices, key: place}))


def two_live_values(executable: Executable, live: LiveValues, bound: BoundContract) -> Executable:
    scratch = [
        value
        for value in live.values
        if value.slice and executable.buffers.allocations[value.slice.allocation].is_temp and value.stop > value.start
    ]
    first, second = next(
        (value, two)
        for value in scratch
        for two in scratch
        if value.start < two.start < value.stop and value.slice != two.slice
    )
    assert first.slice is not None
    return moved(executable, (second.instruction.id, second.index), replace(first.slice, size=second.array.bytes))


def successor_elsewhere(executable: Executable, live: LiveValues, bound: BoundContract) -> Executable:
    aliases = dict(list(executable.module.aliases.items())[1:])
    return replace(executable, module=replace(executable.module, aliases=aliases))


def swapped_successors(executable: Executable, live: LiveValues, bound: BoundContract) -> Executable:
    aliases = executable.module.aliases
    first, second, *_ = aliases
    swapped = {**aliases, first: aliases[second], second: aliases[first]}
    return replace(executable, module=replace(executable.module, aliases=swapped))


def outside_its_allocation(executable: Executable, live: LiveValues, bound: BoundContract) -> Executable:
    fusion = next(fusion for fusion in live.values if fusion.slice and fusion.instruction.opcode == "fusion")
    assert fusion.slice is not None
    return moved(executable, (fusion.instruction.id, fusion.index), replace(fusion.slice, offset=1 << 40))


def no_place(executable: Executable, live: LiveValues, bound: BoundContract) -> Executable:
    fusion = next(
        fusion
        for fusion in live.values
        if fusion.slice and fusion.instruction.opcode == "fusion" and fusion.array.dtype != "tuple"
    )
    slices = {
        key: place for key, place in executable.buffers.slices.items() if key != (fusion.instruction.id, fusion.index)
    }
    return replace(executable, buffers=Buffers(executable.buffers.allocations, slices))


def over_a_turned_operand(executable: Executable, live: LiveValues, bound: BoundContract) -> Executable:
    """Write a product's result over an operand that it reads at other positions."""
    for value in live.values:
        product = value.instruction.name.startswith("gemm_fusion") or value.instruction.fusion_kind == "kOutput"
        if value.slice is None or not product or value.index:
            continue
        for operand in value.instruction.operands:
            for number in live.of[operand].values():
                other, size = live.values[number], value.slice.size
                if other.slice is not None and other.slice.size >= size and other.stop == value.start:
                    return moved(executable, (value.instruction.id, value.index), replace(other.slice, size=size))
    raise AssertionError("no product whose operand ends with it")


def written_while_copied(executable: Executable, live: LiveValues, bound: BoundContract) -> Executable:
    """Write another value to the bytes of a running copy."""
    for value in live.values:
        if value.instruction.opcode != "copy-start" or value.index != (0,) or value.slice is None:
            continue
        end = next(
            index for index, each in enumerate(live.executed)
            if each.opcode == "copy-done" and each.operands[0] == value.instruction.id
        )  # fmt: skip
        started = live.executed.index(value.instruction)
        for each in live.executed[started + 1 : end]:
            for index, number in live.made_by(each):
                other = live.values[number]
                if other.slice is not None and other.array.dtype != "tuple" and other.start > value.start:
                    return moved(executable, (each.id, index), replace(value.slice, size=other.slice.size))
    raise AssertionError("no copy beside other operations")


def copies_in_the_devices_memory(executable: Executable, live: LiveValues, bound: BoundContract) -> Executable:
    """Move every on-chip value to device memory, so that pools are copied there."""
    allocations = {
        number: replace(allocation, space=0) for number, allocation in executable.buffers.allocations.items()
    }
    return replace(executable, buffers=Buffers(allocations, executable.buffers.slices))


MUTANTS: dict[Mutant, FindingKind] = {
    two_live_values: FindingKind.OVERLAP,
    successor_elsewhere: FindingKind.NOT_IN_PLACE,
    swapped_successors: FindingKind.WRONG_SUCCESSOR,
    outside_its_allocation: FindingKind.MISPLACED,
    no_place: FindingKind.UNPLACED,
    over_a_turned_operand: FindingKind.READ_AFTER_WRITE,
}
TPU_MUTANTS: dict[Mutant, FindingKind] = {
    written_while_copied: FindingKind.OVERLAP,
    copies_in_the_devices_memory: FindingKind.POOL_COPY,
}


@pytest.fixture(scope="module", params=PLATFORMS)
def decode(request: pytest.FixtureRequest) -> tuple[Executable, BoundContract]:
    """The decode step of a model, as the audit reads it."""
    programs, compile = list[CompiledProgram](), compiling.compile_with_assignment
    dense = engine("dense_interval", request.param)
    with pytest.MonkeyPatch.context() as patch:

        def noted(*args: Any) -> CompiledProgram:
            programs.append(compile(*args))
            return programs[-1]

        patch.setattr(compiling, "compile_with_assignment", noted)
        step = dense.program(dense.shape("generate", 4, 1))
    return read(programs[0].compiled, programs[0].dump), step.calling.compiled_bound(step.bound)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutants_of_a_buffer_assignment(mutant: Mutant, decode: tuple[Executable, BoundContract]) -> None:
    check_mutant(mutant, MUTANTS[mutant], *decode)


@pytest.mark.parametrize("decode", PLATFORMS[1:], indirect=True)
@pytest.mark.parametrize("mutant", TPU_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutants_of_rules_for_tpus(mutant: Mutant, decode: tuple[Executable, BoundContract]) -> None:
    check_mutant(mutant, TPU_MUTANTS[mutant], *decode)


def check_mutant(mutant: Mutant, kind: FindingKind, executable: Executable, bound: BoundContract) -> None:
    options: dict[str, Any] = {"may_copy": ("args[1].layers*.conv",)}
    assert audit_executable(executable, bound, **options).findings == ()
    broken = mutant(executable, live_values(executable), bound)
    assert kind in {finding.kind for finding in audit_executable(broken, bound, **options).findings}
