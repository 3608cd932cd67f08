"""Reader of the expert groups of a router."""

from models.config.reader import ConfigReader


def read_groups(
    reader: ConfigReader, experts: int, per_token: int, names: tuple[str, str], defaults: tuple[int, int] = (1, 1)
) -> tuple[int, int, int]:
    """Read the groups of a router; return groups, chosen groups and experts per token.

    Args:
        reader: of config.json.
        experts, per_token: of the router.
        names: fields of the groups and of `per_token`.
        defaults: of groups and chosen groups (`topk_group`).
    """
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
