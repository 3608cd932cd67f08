"""Bytes that devices exchange in a step: by the formulas of docs/devices.md, and counted in what XLA made of it."""

import re
from collections import Counter
from math import prod
from typing import NamedTuple

from models import DecoderConfig
from models.attention import AttentionConfig
from models.decoder import BranchConfig, PostNorm
from models.mamba2 import Mamba2Config
from models.moe import MoeConfig
from models.parallel import ParallelConfig

Exchanged = Counter[tuple[str, int]]
"""Bytes of all operands of one device, by the operation in XLA's words and the number of devices that take part."""


class Devices(NamedTuple):
    """Devices along each axis of a mesh."""

    data: int = 1
    model: int = 1
    expert: int = 1


def by_hand(config: DecoderConfig, devices: Devices, lanes: int, tokens: int) -> Exchanged:
    """What a step exchanges that draws a token for each lane.

    Args:
        config: of the whole model.
        devices: that share lanes and model.
        lanes, tokens: of the whole step.
    """
    found, lanes = Exchanged(), lanes // devices.data
    stream = lanes * tokens * config.hidden_size * 4
    _sum(found, devices.model, stream)
    for branch in (branch for layer in config.layers for branch in layer):
        with_experts = isinstance(branch, MoeConfig)
        _sum(found, devices.model * devices.expert if with_experts else devices.model, stream)
        _sum(found, devices.model, lanes * tokens * 4 * _norms(branch, devices.model))
    if devices.model > 1:
        found["all-gather", devices.model] += lanes * config.vocab_size // devices.model * 4
    return +found


def _sum(found: Exchanged, devices: int, size: int) -> None:
    if devices > 1:
        found["all-reduce", devices] += size


def _norms(branch: BranchConfig, devices: int) -> int:
    """Numbers of a row that are summed because a norm goes over what several devices have."""
    if isinstance(branch, PostNorm):
        return _norms(branch.inner, devices)
    if isinstance(branch, ParallelConfig):
        return sum(_norms(inner, devices) for inner in branch.layers)
    if isinstance(branch, AttentionConfig) and branch.qk_norm is not None and branch.qk_norm.all_heads:
        return 2  # of the queries and of the keys
    if isinstance(branch, Mamba2Config) and branch.norm != "none" and branch.groups < devices:
        return branch.groups
    return 0


_COLLECTIVE = re.compile(
    r" = (?P<shape>\(.*?\)|\S+) (?P<operation>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)"
    r"(?:-start)?\(.*?replica_groups=(?P<groups>\{\{[\d,]+\}|\[\d+,\d+\]|mesh\[.*?\] \{.*?\})"
)
_ARRAY = re.compile(r"\b(?:f|s|u|bf)(\d+)\[([\d,]*)\]")


def counted(text: str | None) -> Exchanged:
    """What stands in the text of a compiled program, each operation once, whether or not a loop repeats it.

    Args:
        text: `jax.stages.Compiled.as_text()`.
    """
    assert text is not None, "the program has no text"
    found = Exchanged()
    for line in text.splitlines():
        one = _COLLECTIVE.search(line)
        if one is None:
            continue
        devices = _devices(one["groups"])
        arrays = _ARRAY.findall(one["shape"])
        size = sum(int(bits) // 8 * prod(map(int, dims.split(",") if dims else ())) for bits, dims in arrays)
        # the result of a gather is what all devices had
        found[one["operation"], devices] += size // devices if one["operation"] == "all-gather" else size
    return found


def _devices(groups: str) -> int:
    """How many devices exchange: a list of them, a number of groups and their size, or axes of a mesh (jax 0.12)."""
    if groups.startswith("{"):
        return groups.count(",") + 1
    if groups.startswith("["):
        return int(groups[1:-1].split(",")[1])
    mesh, axes = groups.split("] ")
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh))
    return prod(int(sizes[name]) for name in re.findall(r"'(\w+)'", axes))
