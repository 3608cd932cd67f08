"""Models that are read with their multi-token-prediction head, and why one cannot be."""

import re

from hybridlm.checkpoint import CheckpointDirectory, CheckpointError
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


def require_head(directory: CheckpointDirectory) -> None:
    """Check that a checkpoint has the tensors of a head, those that are skipped where it is not asked for.

    Raises:
        CheckpointError: it has none of them.
    """
    family = family_of(directory.config)
    heads = set(family.skipped) - set(with_head(family).skipped)
    if not any(re.fullmatch(pattern, name) for pattern in heads for name in directory.files):
        raise CheckpointError(
            directory.path,
            f"speculate='mtp' needs the multi-token-prediction head, and no tensor is named {', '.join(sorted(heads))}",
            f"Some copies of a model leave it out; the original has it. {INSTEAD}",
        )
