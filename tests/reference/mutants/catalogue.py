"""All mutants by id."""

from mutants import (
    boundaries,
    executables,
    expert_mixing,
    idle,
    indices,
    lanes,
    owners,
    padding,
    pools,
    sequences,
    tenants,
)
from mutants.mutant import Mutant

THEMES = (padding, indices, lanes, expert_mixing, pools, idle, sequences, boundaries, executables, owners, tenants)
MUTANTS: dict[str, Mutant] = {mutant.id: mutant for theme in THEMES for mutant in theme.MUTANTS}
