"""All mutants of the engine by id."""

from engine_mutants import (
    batches,
    chunks,
    committed,
    drafts,
    layers,
    lifecycle,
    ordering,
    padding,
    prefixes,
    slots,
    verified,
)
from engine_mutants.mutant import EngineMutant
from engine_mutants.replay import StepMutant

THEMES = (lifecycle, slots, padding, batches, chunks, ordering)
MUTANTS: dict[str, EngineMutant] = {mutant.id: mutant for theme in THEMES for mutant in theme.MUTANTS}
STEPS: dict[str, StepMutant] = {mutant.id: mutant for mutant in verified.MUTANTS}
HOSTS: dict[str, EngineMutant] = {mutant.id: mutant for mutant in drafts.MUTANTS}
"""Mutants of speculation: in the step that verifies drafts (`STEPS`), and on the host."""
KEPT: dict[str, EngineMutant] = {mutant.id: mutant for mutant in prefixes.MUTANTS}
"""Mutants of the prefix cache."""
PAGED: dict[str, EngineMutant] = {mutant.id: mutant for mutant in slots.PAGED_MUTANTS}
"""Mutants of the pages of the KV cache."""
COMMITTED: dict[str, EngineMutant] = {mutant.id: mutant for mutant in committed.MUTANTS}
"""Mutants of the state that layers commit when drafts have been verified."""
LAYERS: dict[str, EngineMutant] = {mutant.id: mutant for mutant in layers.MUTANTS}
"""Mutants of layers' computations."""
