"""All mutants by id."""

from mutants import (
    agreement,
    boundaries,
    executables,
    expert_mixing,
    idle,
    indices,
    keys_and_bounds,
    lanes,
    meshes,
    own_ways,
    owners,
    padding,
    places,
    pools,
    row_numbers,
    sequences,
    split_rows,
    tenants,
    verification,
    whole_pools,
)
from mutants.mutant import Mutant

THEMES = (
    padding,
    indices,
    keys_and_bounds,
    lanes,
    meshes,
    split_rows,
    own_ways,
    agreement,
    expert_mixing,
    places,
    row_numbers,
    pools,
    idle,
    sequences,
    boundaries,
    executables,
    owners,
    tenants,
    verification,
    whole_pools,
)
MUTANTS: dict[str, Mutant] = {mutant.id: mutant for theme in THEMES for mutant in theme.MUTANTS}
