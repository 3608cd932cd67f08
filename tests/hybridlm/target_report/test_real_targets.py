"""Steps of every family as XLA compiles them for an H100 and for TPUs, without one (extras target-cuda, target-tpu).

An audit of a program for a GPU is broken by hand in each way that it has to see: mutants of the buffer assignment.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from hybridlm.engine.engine import Engine
from hybridlm.programs.shapes import Shape
from hybridlm.target_report import report_on, shapes_of, target_engine
from ir_passes.compile import stages as compiling
from ir_passes.compile.buffer_assignment import CompiledProgram
from ir_passes.contract.contract import BoundContract
from ir_passes.targets import read_target
from ir_passes.xla_audit.audit import audit_executable
from ir_passes.xla_audit.findings import FindingKind
from ir_passes.xla_audit.hlo import read
from ir_passes.xla_audit.live_values import LiveValues, live_values
from ir_passes.xla_audit.program import Buffers, Executable, Slice

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
MODELS = sorted(path.name for path in GOLDEN.iterdir())
SIZES: dict[str, Any] = {"lanes": 4, "context": 64, "chunk": 8, "dtype": "float32"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "cache"))
    yield
    jax.config.update("jax_compilation_cache_dir", before)


def engine(name: str, target: str, **sizes: Any) -> Engine:
    return target_engine(read_target(target), config=GOLDEN / name / "config.json", **SIZES | sizes)


def check(found: Engine, audited: bool) -> None:
    report = report_on(found, shapes_of(found))
    assert {one.name: one.faults for one in report.steps if one.faults} == {}
    assert report.good and len(report.steps) == 5
    for one in report.steps:
        assert (
            one.certificate is not None and one.certificate.proved and (one.certificate.not_audited is None) == audited
        )
        assert one.moved > 0 and one.kernels > 0
        assert one.floor_moved is None or one.moved > one.floor_moved


@pytest.mark.target_cuda
@pytest.mark.parametrize("name", MODELS)
def test_families_on_an_h100(name: str) -> None:
    check(engine(name, "nvidia-h100"), audited=True)


@pytest.mark.target_cuda
@pytest.mark.parametrize(
    "mesh",
    [{"expert": 4}, {"data": 2, "model": 2}, {"model": 2, "expert": 2}, {"data": 2, "expert": 2}],
    ids=str,
)
def test_mesh_of_four_gpus(mesh: dict[str, int], tmp_path: Path) -> None:
    fields = json.loads((GOLDEN / "sparse_base" / "config.json").read_text())
    config = tmp_path / "config.json"
    config.write_text(json.dumps(fields | {"vocab_size": 96}))  # 97 rows cannot be split
    check(target_engine(read_target("nvidia-h100:4"), config=config, mesh=mesh, **SIZES), audited=True)


@pytest.mark.target_cuda
@pytest.mark.parametrize("target", ["nvidia-a100", "nvidia-a6000", "nvidia-l4", "nvidia-h200", "nvidia-b200"])
def test_other_gpus(target: str) -> None:
    found = engine("dense_interval", target)
    (one,) = report_on(found, [Shape("generate", 4, 1)]).steps
    assert not one.faults and one.certificate is not None
    assert one.certificate.versions.device == read_target(target).device_kind


@pytest.mark.target_tpu
@pytest.mark.parametrize("target", ["tpu-v5e", "tpu-v4", "tpu-v5p", "tpu-v6e"])
def test_tpus(target: str) -> None:
    """They are proved and compiled; the audit does not know the operations that XLA has for them alone."""
    check(engine("sparse_base", target), audited=False)


Mutant = Callable[[Executable, LiveValues, BoundContract], Executable]


def moved(executable: Executable, at: tuple[int, tuple[int, ...]], place: Slice) -> Executable:
    buffers = executable.buffers
    return replace(executable, buffers=Buffers(buffers.allocations, {**buffers.slices, at: place}))


def two_live_values(executable: Executable, live: LiveValues, bound: BoundContract) -> Executable:
    scratch = [
        one
        for one in live.values
        if one.slice and executable.buffers.allocations[one.slice.allocation].is_temp and one.stop > one.start
    ]
    first, second = next(
        (one, two) for one in scratch for two in scratch if one.start < two.start < one.stop and one.slice != two.slice
    )
    assert first.slice is not None
    return moved(executable, (second.instruction.id, second.index), replace(first.slice, size=second.array.bytes))


def successor_elsewhere(executable: Executable, live: LiveValues, bound: BoundContract) -> Executable:
    aliases = executable.module.aliases
    return replace(executable, module=replace(executable.module, aliases=aliases[1:]))


def swapped_successors(executable: Executable, live: LiveValues, bound: BoundContract) -> Executable:
    first, second, *rest = executable.module.aliases
    swapped = replace(first, output=second.output), replace(second, output=first.output)
    return replace(executable, module=replace(executable.module, aliases=(*swapped, *rest)))


def outside_its_allocation(executable: Executable, live: LiveValues, bound: BoundContract) -> Executable:
    one = next(one for one in live.values if one.slice and one.instruction.opcode == "fusion")
    assert one.slice is not None
    return moved(executable, (one.instruction.id, one.index), replace(one.slice, offset=1 << 40))


def no_place(executable: Executable, live: LiveValues, bound: BoundContract) -> Executable:
    one = next(
        one for one in live.values if one.slice and one.instruction.opcode == "fusion" and one.array.dtype != "tuple"
    )
    slices = {at: place for at, place in executable.buffers.slices.items() if at != (one.instruction.id, one.index)}
    return replace(executable, buffers=Buffers(executable.buffers.allocations, slices))


def over_a_turned_operand(executable: Executable, live: LiveValues, bound: BoundContract) -> Executable:
    """A product's result in the bytes of an operand that it reads at other positions: a shift in place."""
    for one in live.values:
        if one.slice is None or not one.instruction.name.startswith("gemm_fusion"):
            continue
        for operand in one.instruction.operands:
            for number in live.of[operand].values():
                other = live.values[number]
                if other.slice is not None and other.array.bytes >= one.array.bytes and other.stop == one.start:
                    return moved(
                        executable, (one.instruction.id, one.index), replace(other.slice, size=one.array.bytes)
                    )
    raise AssertionError("no product whose operand ends with it")


MUTANTS: dict[Mutant, FindingKind] = {
    two_live_values: FindingKind.OVERLAP,
    successor_elsewhere: FindingKind.NOT_IN_PLACE,
    swapped_successors: FindingKind.WRONG_SUCCESSOR,
    outside_its_allocation: FindingKind.MISPLACED,
    no_place: FindingKind.MISPLACED,
    over_a_turned_operand: FindingKind.READ_AFTER_WRITE,
}


@pytest.fixture(scope="module")
def decode() -> tuple[Executable, BoundContract]:
    """The decode step of a model for an H100, as the audit reads it."""
    programs, compile = list[CompiledProgram](), compiling.compile_with_assignment
    found = engine("dense_interval", "nvidia-h100")
    with pytest.MonkeyPatch.context() as patch:

        def noted(*args: Any) -> CompiledProgram:
            programs.append(compile(*args))
            return programs[-1]

        patch.setattr(compiling, "compile_with_assignment", noted)
        step = found.program(Shape("generate", 4, 1))
    return read(programs[0].compiled, programs[0].dump), step.calling.compiled_bound(step.bound)


@pytest.mark.target_cuda
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutants_of_a_buffer_assignment(mutant: Mutant, decode: tuple[Executable, BoundContract]) -> None:
    executable, bound = decode
    options: dict[str, Any] = {"may_copy": ("args[1].layers*.conv",)}
    assert audit_executable(executable, bound, **options).findings == ()
    broken = mutant(executable, live_values(executable), bound)
    assert MUTANTS[mutant] in {one.kind for one in audit_executable(broken, bound, **options).findings}
