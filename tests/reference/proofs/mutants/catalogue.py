"""All mutants by id."""

from mutants import (
    batches,
    boundaries,
    executables,
    expert_mixing,
    keys_and_bounds,
    lanes,
    lost_facts,
    mutable_arrays,
    owners,
    packed,
    rule_parameters,
    sequences,
    tenants,
    token_neighbours,
    unnamed,
    verification,
)
from mutants.kernels import buffered_kernels, declared, grid_kernels, read_kernels, shared_blocks, whole_kernels
from mutants.meshes import agreement, borders, own_ways, split_rows
from mutants.mutant import Mutant
from mutants.rows import (
    held_rows,
    idle,
    indices,
    padding,
    page_tables,
    places,
    pools,
    row_caches,
    row_numbers,
    whole_pools,
)
from mutants.tokens import token_indices, token_limits, token_loops, token_scans, token_sums, token_tiles

THEMES = (
    padding, indices, declared, keys_and_bounds, lanes, borders, split_rows, own_ways, agreement, expert_mixing,
    places, page_tables, row_caches, row_numbers, rule_parameters, pools, read_kernels, whole_kernels, grid_kernels,
    buffered_kernels, shared_blocks, unnamed, idle, held_rows, lost_facts, mutable_arrays, sequences, boundaries,
    executables, owners, packed, token_neighbours, token_indices, token_scans, token_loops, token_sums, token_tiles,
    token_limits, tenants, verification, whole_pools, batches,
)  # fmt: skip
MUTANTS: dict[str, Mutant] = {mutant.id: mutant for theme in THEMES for mutant in theme.MUTANTS}
