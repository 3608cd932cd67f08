"""The sanitizer follows the right steps of the zoo and finds nothing wrong in them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zoo.catalogue import PROGRAMS
from zoo.kernels import buffered_kernels
from zoo.meshes import sharded_rows
from zoo.program import Program

from hybridlm.compiler import host
from ir_passes import PageTable, SlotMap
from ir_passes.sanitizer.sanitize import UntrackedError, sanitize
from ir_passes.sanitizer.verdict import LabelFault, SanitizerError, UntrackedFault

QUICK = {
    "flat pool",
    "gated delta, idle lanes",
    "null rows written back",
    "speculative groups",
    "layers scanned over with their pools",
}
KERNELS = {
    "kernel: a computed number of steps",
    "kernel: rows by copies",
    "kernel: rows by prefetched slots",
    "kernel: rows in place",
} | {program.name for program in buffered_kernels.PROGRAMS}
"""They find their rows by themselves, in a language that only the proof reads."""
UNTRACKED = {
    "sharded channels of packed tokens",
    "sharded heads behind a slot map",
    "sharded, rows of a rank",
    "sharded rows copied where devices agree",
    "sharded rows copied where devices agree twice",
} | {program.name for program in sharded_rows.PROGRAMS}
IN_PARTS = "flat pool"
"""Rows are merged with other dimensions and written element by element; a label is of a whole row."""
TWO_CLAIMS = "rows read here and added to there"
"""One lane reads the row that another one adds to: the proof takes it for the row of both, a label knows one owner."""


def rows_of_lanes(program: Program, args: tuple) -> dict[str, np.ndarray]:
    """The row that each lane reads in the pools of each mapped group."""
    bound = program.contract.bind(program.step, args)
    pairs = zip(bound.inputs, jax.tree.leaves(args), strict=True)
    maps = [(entry.entry, np.asarray(leaf)) for entry, leaf in pairs if isinstance(entry.entry, SlotMap)]
    return {name: rows for entry, rows in maps if entry.role != "write" for name in entry.names}


def run(program: Program) -> None:
    args = program.args()
    sanitized = sanitize(program.step, args, program.contract)
    lanes, groups = sanitized.bound.lanes, rows_of_lanes(program, args)
    labels = np.array([host.Label(10 + lane, 3, 0, 1) for lane in range(lanes)], np.int32)
    array = np.array([host.Label(10 + lane, 4, 0, 2) for lane in range(lanes)], np.int32)
    tables = [item.entry for item in sanitized.bound.inputs if isinstance(item.entry, PageTable)]
    paged = {name for entry in tables for name in entry.names}
    shadow_labels = []
    for index, shadow in zip(sanitized.pools, sanitized.shadow_labels(), strict=True):
        rows = groups.get(sanitized.bound.inputs[index].entry.group, np.arange(lanes))  # pyright: ignore  # a pool
        shadow_labels.append(jnp.asarray(shadow).at[np.where(rows > 0, rows, len(shadow))].set(labels, mode="drop"))
        if sanitized.bound.inputs[index].entry.group in paged:  # pyright: ignore  # a pool
            shadow_labels[-1] = jnp.asarray(shadow)
        elif sanitized.bound.inputs[index].entry.group not in groups:  # pyright: ignore  # a pool
            shadow_labels[-1] = jnp.asarray(labels)
    actual = labels.copy()
    for rows in groups.values():
        actual[rows == 0] = host.Label(host.ReservedOwner.ANY)
    step = jax.jit(sanitized.step, compiler_options={"xla_backend_optimization_level": "0"})
    *_, verdict = step(*args, shadow_labels=tuple(shadow_labels), expected=host.Expected(actual, array))
    # Some programs draw which of their lanes begin; those have to compute with zeros.
    begins = (np.asarray(verdict.code) > 0) & (np.asarray(verdict.found)[:, 0] == host.ReservedOwner.FRESH)
    actual[begins] = host.Label(host.ReservedOwner.FRESH)
    expected = host.Expected(actual, array)
    *out, new, verdict = step(*args, shadow_labels=tuple(shadow_labels), expected=expected)
    sanitized.require(verdict, expected)
    want = jax.jit(program.step)(*args)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), tuple(out), tuple(want))
    assert all(shadow.shape == old.shape for shadow, old in zip(new, shadow_labels, strict=True))


def test_idle_lanes_are_on_the_null_row_in_all_slot_maps() -> None:
    """By every contract; the sanitizer compares the maps."""
    several = 0
    for name, program in PROGRAMS.items():
        if sum(isinstance(entry, SlotMap) for entry in jax.tree.leaves(program.contract.inputs)) > 1:
            entries = [item.entry for item in program.bound().inputs]
            slot_maps = [(k, entry) for k, entry in enumerate(entries) if isinstance(entry, SlotMap)]
            maps = [k for k, entry in slot_maps if entry.null and not entry.disjoint]
            several += len(maps) > 1
            for seed in range(5):
                leaves = jax.tree.leaves(program.draw(np.random.default_rng(seed)))
                assert len({tuple(np.flatnonzero(leaves[k] == 0)) for k in maps}) <= 1, name
    assert several > 2


def test_kernels_and_meshes_are_refused_where_they_take_whole_pools() -> None:
    """All programs are traced, so that new refusals or acceptances show."""
    refused = set()
    for name, program in PROGRAMS.items():
        if name.startswith(("kernel", "sharded")) and not program.opaque:
            try:
                sanitize(program.step, program.args(), program.contract)
            except UntrackedError:
                refused.add(name)
    assert refused == KERNELS | UNTRACKED


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK | KERNELS else pytest.param(name, marks=pytest.mark.long)
        for name, program in PROGRAMS.items()
        if not program.opaque
    ],
)
def test_zoo(name: str) -> None:
    if name in UNTRACKED:
        with pytest.raises(UntrackedError, check=lambda error: UntrackedFault.DEVICES in error.ids):
            run(PROGRAMS[name])
    elif name in KERNELS:
        with pytest.raises(UntrackedError, match="pallas_call at .* an operation that is not looked into"):
            run(PROGRAMS[name])
    elif name == IN_PARTS:
        with pytest.raises(UntrackedError, check=lambda error: error.ids == (UntrackedFault.PARTS,)):
            run(PROGRAMS[name])
    elif name == TWO_CLAIMS:
        with pytest.raises(SanitizerError, check=lambda error: {*error.ids} == {LabelFault.OWNER}):
            run(PROGRAMS[name])
    else:
        run(PROGRAMS[name])
