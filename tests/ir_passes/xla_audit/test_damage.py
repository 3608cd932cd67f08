"""Damaged modules and buffer assignments raise HloError, whatever part is inconsistent."""

import random
from collections import Counter
from typing import Any

import pytest
from audited_steps import Step, right_steps

from ir_passes.xla_audit import hlo
from ir_passes.xla_audit.audit import audit_executable
from ir_passes.xla_audit.collectives import MAX_DEVICES, read_groups
from ir_passes.xla_audit.program import Executable

SEEDS = 300


@pytest.fixture(scope="module")
def step() -> Step:
    return right_steps()["pool as carry"]


@pytest.fixture(scope="module")
def parts(step: Step) -> tuple[bytes, bytes]:
    compiled = step.compile()
    return hlo.only_module(compiled).as_serialized_hlo_module_proto(), hlo.given_assignment(compiled)


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Flip a bit, set a byte, drop some or add one."""
    place, length = rng.randrange(len(data)), rng.choice([0, 1, 1, 1, 20])
    middle = bytes([data[place] ^ 1 << rng.randrange(8)]) if length == 1 else rng.randbytes(1 - length // 20)
    return data[:place] + middle + data[place + length :]


def audited(step: Step, module: bytes, assignment: bytes) -> str:
    """The outcome of an audit: the class of the error behind an HloError, or "read"."""
    try:
        executable = Executable(hlo.read_module(module), hlo.read_buffers(assignment), {0: 0, 1: 1, 2: 2}, "cpu", 0, "")
        audit_executable(executable, step.bound())
    except hlo.HloError as error:
        return type(error.__cause__).__name__
    return "read"


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1], ids=["module", "buffer assignment"])
def test_damaged_bytes_are_an_hlo_error(step: Step, parts: tuple[bytes, bytes], number: int) -> None:
    outcomes = Counter[str]()
    for seed in range(SEEDS):
        pair = list(parts)
        pair[number] = damaged(pair[number], random.Random(seed))
        outcomes[audited(step, *pair)] += 1
    # Names, source lines and numbers may be damaged and still be read.
    assert outcomes.total() == SEEDS
    assert outcomes["ValueError"] > SEEDS // 20 and outcomes["read"] < SEEDS


def test_a_module_without_its_computations_is_an_hlo_error(step: Step, parts: tuple[bytes, bytes]) -> None:
    with pytest.raises(hlo.HloError):
        audit_executable(Executable(hlo.read_module(b""), hlo.read_buffers(parts[1]), {}, "cpu", 0, ""), step.bound())
    with pytest.raises(hlo.HloError):
        audit_executable(
            Executable(hlo.read_module(parts[0]), hlo.read_buffers(b""), {7: 9, 0: 5}, "cpu", 0, ""), step.bound()
        )


def test_an_unpacked_dump_is_checked() -> None:
    with pytest.raises(hlo.HloError):
        hlo.unpack_dump(b"\x0a\xff")


@pytest.mark.parametrize("sizes", [[MAX_DEVICES, 2], [0, 4], [1 << 40]])
def test_groups_of_impossible_meshes_are_an_hlo_error(sizes: list[int]) -> None:
    iota: dict[str, Any] = {"reshape": sizes, "transpose": (), "groups": 1, "devices": 4}
    raw = {"pairs": (), "mesh_groups": None, "devices": {"iota": iota, "replica_groups": ()}, "replica_groups": ()}
    with pytest.raises(hlo.HloError, match="devices"):
        read_groups(raw)
