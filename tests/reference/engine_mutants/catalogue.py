"""All mutants of the engine by id."""

from engine_mutants import batches, chunks, lifecycle, ordering, padding
from engine_mutants.mutant import EngineMutant

THEMES = (lifecycle, padding, batches, chunks, ordering)
MUTANTS: dict[str, EngineMutant] = {mutant.id: mutant for theme in THEMES for mutant in theme.MUTANTS}
