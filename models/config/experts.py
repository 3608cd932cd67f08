"""Readers of a router's fields in config.json."""

from models.config.fields import spelled
from models.config.reader import ConfigReader


def read_experts(
    reader: ConfigReader, *names: str, experts: int | None = None, per_token: int | None = None
) -> tuple[int, int]:
    """Read the numbers of a router's experts, and of experts per token.

    Args:
        names: of the first number; the first present one counts.
        experts, per_token: defaults; required without.
    """
    experts = reader.integer(spelled(reader, *names), experts)
    per_token = reader.integer("num_experts_per_tok", per_token)
    if per_token > experts:
        reader.fault("num_experts_per_tok", f"at most {names[0]} ({experts})")
    return experts, min(per_token, experts)


def read_groups(
    reader: ConfigReader, experts: int, per_token: int, names: tuple[str, str], defaults: tuple[int, int] = (1, 1)
) -> tuple[int, int, int]:
    """Read a router's groups, chosen groups and experts per token."""
    groups, chosen = reader.integer(names[0], defaults[0]), reader.integer("topk_group", defaults[1])
    if experts % groups or (groups > 1 and experts // groups < 2):
        reader.fault(names[0], f"a divisor of the {experts} experts that leaves at least two in a group")
        groups = 1
    if chosen > groups:
        reader.fault("topk_group", f"at most the {groups} groups")
        chosen = groups
    if per_token > (limit := chosen * (experts // groups)):
        reader.fault(names[1], f"at most the {limit} experts of the chosen groups")
    return groups, chosen, min(per_token, limit)
