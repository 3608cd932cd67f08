"""All programs of the zoo by name, without model families (`zoo.real_models`)."""

from zoo import (
    attention,
    batches,
    chunked,
    experts,
    gated_delta,
    held_rows,
    labelled_layers,
    layers,
    loops,
    mamba,
    mutable_arrays,
    packed,
    pages,
    row_caches,
    rows,
    speculative,
    verification,
)
from zoo.kernels import buffered_kernels, grid_kernels, read_kernels, shared_blocks, whole_kernels
from zoo.meshes import agreement, sharded, sharded_experts, sharded_rows
from zoo.program import Program
from zoo.tokens import (
    token_indices,
    token_limits,
    token_loops,
    token_neighbours,
    token_scans,
    token_sums,
    token_tiles,
)

THEMES = (
    gated_delta, mamba, mutable_arrays, packed, token_neighbours, token_indices, token_scans, token_loops, token_sums,
    token_tiles, token_limits, attention, experts, layers, labelled_layers, loops, row_caches, rows, held_rows, pages,
    read_kernels, whole_kernels, grid_kernels, buffered_kernels, shared_blocks, speculative, sharded, sharded_experts,
    sharded_rows, agreement, chunked, verification, batches,
)  # fmt: skip
PROGRAMS: dict[str, Program] = {program.name: program for theme in THEMES for program in theme.PROGRAMS}
