"""Models that are read with their multi-token-prediction head, and why one cannot be."""

from hybridlm.checkpoint import Checkpoint, CheckpointError, has_head, head_tensors
from models import FAMILIES, Family, family_of

INSTEAD = "speculate='ngram' needs no head."


def with_head(family: Family) -> Family:
    """The family with the head of its checkpoints.

    Raises:
        ValueError: none is implemented.
    """
    if family.with_head is None:
        known = ", ".join(dict.fromkeys(one.name for one in FAMILIES if one.with_head is not None))
        raise ValueError(
            f"speculate: 'mtp' needs a multi-token-prediction head, and none is implemented for family {family.name} "
            f"(for {known} it is). {INSTEAD}"
        )
    return family.with_head


def require_head(directory: Checkpoint) -> None:
    """Check that a checkpoint has a head.

    Raises:
        CheckpointError: it has none of them.
    """
    family = family_of(directory.config)
    with_head(family)
    if not has_head(directory, family):
        names = ", ".join(sorted(head_tensors(family)))
        raise CheckpointError(
            directory.path,
            f"speculate='mtp' needs the multi-token-prediction head, and no tensor is named {names}",
            "Some copies of a model leave it out; the original has it. A model is saved with its head where it was "
            f"loaded with it. {INSTEAD}",
        )
