"""A known program through the table of field numbers: fails where XLA renumbers one."""

import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from as_for_users import compiled

from ir_passes.xla_audit import hlo
from ir_passes.xla_audit.program import Array, Executable, Slice

ROWS, WIDTH = 16, 256


def three_operations(unused, pool, slots, x):
    return pool.at[slots].set(x * 2.0), jnp.sort(x[:, 0])


@pytest.fixture(scope="module")
def canary() -> Executable:
    args = (jnp.zeros(3), jnp.zeros((ROWS, WIDTH)), jnp.arange(4, dtype=jnp.int32), jnp.ones((4, WIDTH)))
    return hlo.read(compiled(jax.jit(three_operations, donate_argnums=1).lower(*args)))


def test_canary_module(canary: Executable) -> None:
    module = canary.module
    main = module.main
    assert module.name == "jit_three_operations"
    assert not main.is_fusion
    assert sorted(main.parameters) == [0, 1, 2]
    f32 = Array("f32", (ROWS, WIDTH), (1, 0), 32)
    assert [main.parameters[i].array for i in range(3)] == [
        f32,
        Array("s32", (4,), (0,), 32),
        Array("f32", (4, WIDTH), (1, 0), 32),
    ]
    assert (f32.count, f32.bytes, f32.row_major, str(f32)) == (4096, 16384, True, "f32[16,256]")
    root = module.instructions[main.root]
    assert root.opcode == "tuple"
    assert root.arrays == {(): Array("tuple", (2,), (0,), 64), (0,): f32, (1,): Array("f32", (4,), (0,), 32)}
    written = module.instructions[root.operands[0]]
    assert main.parameters[0].id in written.operands
    assert [user.id for user in main.users[written.id]] == [root.id]
    order = [module.instructions[id] for id in module.schedule[main.id]]
    assert {certificate.id for certificate in order} == {instruction.id for instruction in main.instructions}
    assert order[-1] is root


def test_canary_origin(canary: Executable) -> None:
    operations = {i.op_name: i.source for i in canary.module.instructions.values() if "mul" in i.op_name}
    line = three_operations.__code__.co_firstlineno + 1
    assert operations == {"jit(three_operations)/mul": f"{__file__}:{line}"}


def test_canary_alias_and_kept_arguments(canary: Executable) -> None:
    assert canary.module.aliases == {(0, ()): (0,)}
    assert canary.parameters == {1: 0, 2: 1, 3: 2}


def test_canary_constant_and_attributes(canary: Executable) -> None:
    every = [i for computation in canary.module.computations.values() for i in computation.instructions]
    assert ROWS in [item.scalar for item in every]
    sliced = [instruction for instruction in every if instruction.opcode == "slice"]
    assert [item.slices for item in sliced] == [((0, 4, 1), (0, 1, 1))]
    (scatter,) = [instruction for instruction in every if instruction.opcode == "scatter"]
    assert scatter.attributes
    assert len(scatter.called) == 1


def test_canary_buffers(canary: Executable) -> None:
    buffers, main = canary.buffers, canary.module.main
    pool = buffers.slices[(main.parameters[0].id, ())]
    assert (pool.offset, pool.size) == (0, 4 * ROWS * WIDTH)
    allocation = buffers.allocations[pool.allocation]
    assert (allocation.parameter, allocation.live_out, allocation.size) == (0, True, 4 * ROWS * WIDTH)
    root = canary.module.instructions[main.root]
    assert buffers.slices[(root.operands[0], ())] == pool
    table = buffers.slices[(root.id, ())]
    assert table.size == 16
    assert buffers.allocations[table.allocation].live_out
    temps = [allocation for allocation in buffers.allocations.values() if allocation.is_temp]
    assert sum(temp.size for temp in temps) == canary.temp_bytes > 0
    offsets = [place.offset for place in buffers.slices.values() if buffers.allocations[place.allocation].is_temp]
    assert 0 in offsets
    assert max(offsets) > 0
    assert any(allocation.is_constant for allocation in buffers.allocations.values())


def test_slices_overlap_by_bytes_of_one_allocation() -> None:
    part = Slice(0, 64, 64)
    assert part.overlaps(Slice(0, 127, 1))
    assert part.overlaps(Slice(0, 0, 65))
    assert not part.overlaps(Slice(0, 128, 64))
    assert not part.overlaps(Slice(0, 0, 64))
    assert not part.overlaps(Slice(1, 64, 64))


def test_addresses_of_donated_pools() -> None:
    pools = (jnp.zeros((64, 64)), {"b": jnp.ones(64)})
    step = jax.jit(lambda pools: jax.tree.map(lambda x: x + 1.0, pools), donate_argnums=0)
    addresses = hlo.addresses(pools)
    assert [len(item) for item in addresses] == [1, 1]
    pools = step(pools)
    assert hlo.addresses(pools) == addresses


@pytest.fixture
def metadata_in_keys() -> Iterator[None]:
    """JAX's cache of programs tells programs apart that differ in source lines alone."""
    jax.config.update("jax_compilation_cache_include_metadata_in_key", True)
    yield
    jax.config.update("jax_compilation_cache_include_metadata_in_key", False)


def compiled_module(scale: float, file: str, lines: int = 0) -> Any:
    source = "\n" * lines + "def scaled(x):\n    with jax.named_scope(scope):\n        return jnp.tanh(x * scale)\n"
    names: dict[str, Any] = {"jax": jax, "jnp": jnp, "scale": scale, "scope": f"scope{{{lines}}}"}
    exec(compile(source, file, "exec"), names)
    executable = jax.jit(names["scaled"]).lower(jnp.ones((4, 4))).compile().runtime_executable()
    assert executable is not None
    return executable.hlo_modules()[0]


@pytest.mark.usefixtures("metadata_in_keys")
def test_fingerprint_ignores_source_lines_and_sees_constants() -> None:
    module = compiled_module(2.0, "/here/layer.py")
    moved = compiled_module(2.0, '/elsewhere/with {braces} and "quotes".py', lines=7)
    assert "layer.py" in module.to_string() and "braces" in moved.to_string()
    assert hlo.fingerprint(moved) == hlo.fingerprint(module)
    assert hlo.fingerprint(compiled_module(3.0, "/here/layer.py")) != hlo.fingerprint(module)


PROGRAM = """
import jax, jax.numpy as jnp
from ir_passes.xla_audit import hlo
def step(pool, slots, x):
    return pool.at[slots].set(pool[slots] * 0.5 + x), jnp.tanh(x).sum(1)
args = (jnp.zeros((16, 64)), jnp.arange(4, dtype=jnp.int32), jnp.ones((4, 64)))
print(hlo.read(jax.jit(step, donate_argnums=0).lower(*args).compile()).fingerprint)
"""


@pytest.mark.slow
def test_fingerprint_is_the_same_in_every_process(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
    def run(shift: int) -> str:
        file = tmp_path / f"program_{shift}.py"
        file.write_text("\n" * shift + PROGRAM)
        process = subprocess.run(
            [sys.executable, file],
            capture_output=True,
            text=True,
            env={"PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"},
        )
        assert process.returncode == 0, process.stderr
        return process.stdout

    assert run(0) == run(7)
