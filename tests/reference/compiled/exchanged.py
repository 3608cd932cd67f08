"""Bytes exchanged in a step: by docs/devices.md, and counted in XLA's program."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from math import prod
from typing import NamedTuple

from hybridlm.families import AttentionConfig, BranchConfig, MoeConfig
from ir_passes.jaxpr.collectives import Collective, bytes_sent
from models import DecoderConfig
from models.decoder.decoder import Wrapped
from models.decoder.parallel import ParallelConfig
from models.mixers.lightning_attention import LightningAttentionConfig
from models.mixers.mamba1 import Mamba1Config
from models.mixers.mamba2 import Mamba2Config
from models.mixers.ngram_embedding import NgramEmbeddingConfig
from models.mixers.shared_block import SharedBlockConfig

Exchanged = Counter[tuple[str, int]]
"""Bytes of all operands of one device, by the operation in XLA's words and the number of devices that take part."""


class Devices(NamedTuple):
    """Devices along each axis of a mesh."""

    data: int = 1
    model: int = 1
    expert: int = 1


def by_hand(
    config: DecoderConfig, devices: Devices, lanes: int, tokens: int, step: str = "generate", top: int = 0
) -> Counter[Collective]:
    """Return the collectives of a step with their counts.

    Args:
        config: of the whole model.
        devices: that share lanes and model.
        lanes, tokens: of the whole step.
        step: "generate" samples a token for each lane, "verify" one after each token, "score" reads a text's tokens.
        top: number of most likely tokens with log-probabilities in scoring.
    """
    mapping, lanes = Counter[Collective](), lanes // devices.data
    stream = lanes * tokens * config.hidden_size * 4
    mapping[_exchange("psum", ("model",), devices, stream)] += 1
    for branch in (branch for layer in config.layers for branch in layer):
        inner = _inner(branch)
        axes = ("expert", "model") if isinstance(inner, MoeConfig) else ("model",)
        size = lanes * tokens * inner.width * 4 if isinstance(inner, NgramEmbeddingConfig) else stream
        mapping[_exchange("psum", axes, devices, size)] += _sums(inner)
        for numbers in _norms(branch, devices.model):
            mapping[_exchange("psum", ("model",), devices, lanes * tokens * numbers * 4)] += 1
    sampled = lanes if step == "generate" else lanes * tokens
    if step == "score":
        function = partial(_exchange, axes=("model",), devices=devices, size=4 * sampled)
        # the greatest logit and the sum of exponentials, the logit of the text's token, whether it is the most likely
        mapping += Counter({function("pmax"): 1, function("psum"): 2})
        for count in (1, top) if top else (1,):
            mapping += Counter(
                function("all_gather", size=4 * sampled * count, dtype=dtype) for dtype in ("float32", "int32")
            )
    else:
        mapping[_exchange("all_gather", ("model",), devices, sampled * config.vocab_size // devices.model * 4)] += 1
    return Counter({item: count for item, count in mapping.items() if item.devices > 1})


def ways_of_experts(devices: int, tokens: int, numbers: int) -> dict[str, int]:
    """Bytes that a device sends in a layer with split experts, in both ways, without drops.

    Args:
        devices: that have experts, of whatever number.
        tokens: in the lanes of one device.
        numbers: of a token.

    Returns:
        "sum": every device has every token, and the parts of the result are summed. "sent": every device has a piece of
        the tokens, with room for all of it at every other device, sends it there and has as much back, and in the end
        all have the results of all.
    """

    def exchange(operation: str, count: int) -> Collective:
        return Collective(operation, ("expert",), devices, "float32", 4 * count * numbers, 1, "")

    piece = -(-tokens // devices)
    sent = exchange("all_to_all", devices * piece)
    ways = {"sum": [exchange("psum", tokens)], "sent": [sent, sent, exchange("all_gather", piece)]}
    return {way: bytes_sent(collectives) or 0 for way, collectives in ways.items()}


def _exchange(operation: str, axes: tuple[str, ...], devices: Devices, size: int, dtype: str = "float32") -> Collective:
    along = devices._asdict()
    axes = tuple(axis for axis in axes if along[axis] > 1)
    return Collective(operation, axes, prod(along[axis] for axis in axes), dtype, size, 1, "")


def _inner(branch: BranchConfig) -> BranchConfig:
    return _inner(branch.inner) if isinstance(branch, Wrapped) else branch


def _sums(branch: BranchConfig) -> int:
    """Return the number of sums of a layer; a Mamba-1 layer is whole on every device."""
    if isinstance(branch, Mamba1Config):
        return 0
    return 3 if isinstance(branch, SharedBlockConfig) else 1


def _norms(branch: BranchConfig, devices: int) -> tuple[int, ...]:
    """Numbers per row in the sums of norms over several devices."""
    branch = _inner(branch)
    if isinstance(branch, ParallelConfig):
        return sum((_norms(inner, devices) for inner in branch.layers), ())
    if isinstance(branch, AttentionConfig) and branch.qk_norm is not None and branch.qk_norm.all_heads:
        return 1, 1  # of the queries and of the keys
    if isinstance(branch, Mamba2Config) and branch.norm != "none" and branch.groups < devices:
        return (branch.groups,)
    if isinstance(branch, LightningAttentionConfig) and branch.groups < devices:
        return (branch.groups,)
    return ()


def without_sources(collectives: Iterable[Collective]) -> Counter[Collective]:
    """The collectives of a certificate, as `by_hand` has them."""
    return Counter(replace(collective, source="") for collective in collectives)


def in_bytes(collectives: Counter[Collective]) -> Exchanged:
    """All together, as `counted` has them."""
    exchanged = Exchanged()
    for buffer, count in collectives.items():
        operation = "all-gather" if buffer.operation == "all_gather" else "all-reduce"
        exchanged[operation, buffer.devices] += count * buffer.bytes
    return exchanged


_COLLECTIVE = re.compile(
    r" = (?P<shape>\(.*?\)|\S+) (?P<operation>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)"
    r"(?:-start)?\(.*?replica_groups=(?P<groups>\{\{[\d,]+\}|\[\d+,\d+\]|mesh\[.*?\] \{.*?\})"
)
_OPCODE = re.compile(
    r" = (?:\(.*?\)|\S+) (all-reduce|all-gather|reduce-scatter|(?:ragged-)?all-to-all|collective-permute|"
    r"collective-broadcast)(?:-start)?\("
)
_ARRAY = re.compile(r"\b(?:f|s|u|bf)(\d+)\[([\d,]*)\]")


def counted(text: str | None) -> Exchanged:
    """Count collectives in a compiled program's text, each operation once.

    Args:
        text: `jax.stages.Compiled.as_text()`.
    """
    assert text is not None, "the program has no text"
    exchanged = Exchanged()
    for line in text.splitlines():
        match = _COLLECTIVE.search(line)
        if match is None:
            continue
        devices = _devices(match["groups"])
        arrays = _ARRAY.findall(match["shape"])
        size = sum(int(bits) // 8 * prod(map(int, dims.split(",") if dims else ())) for bits, dims in arrays)
        # the result of a gather is what all devices had
        exchanged[match["operation"], devices] += size // devices if match["operation"] == "all-gather" else size
    return exchanged


def collectives_in(text: str | None) -> list[str]:
    """Opcodes of all exchanges in a compiled program's text."""
    assert text is not None, "the program has no text"
    lines = (line.split(", metadata=")[0] for line in text.splitlines())
    return [match[1] for line in lines if (match := _OPCODE.search(line))]


def _devices(groups: str) -> int:
    """Number of exchanging devices: a list, group counts, or mesh axes (jax 0.12)."""
    if groups.startswith("{"):
        return groups.count(",") + 1
    if groups.startswith("["):
        return int(groups[1:-1].split(",")[1])
    mesh, axes = groups.split("] ")
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh))
    return prod(int(sizes[name]) for name in re.findall(r"'(\w+)'", axes))
