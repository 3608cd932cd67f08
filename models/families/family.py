"""Model family: a config reader, a list of weights, and the tensor names it skips."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.decoder.decoder import BranchConfig, Decoder, DecoderConfig
from models.decoder.mtp import MtpDecoder
from models.families.architectures import text_classes
from models.layers.initial import ZeroRngs
from models.mixers.samples import samples
from models.state.state import state_size
from models.weights.sources import Weight

MAX_MTP_LAYERS = 8
"""Most layers of multi-token prediction; published models have one to three."""


def _no_constants(_config: Any) -> Mapping[str, np.ndarray]:
    return {}


@dataclass(frozen=True)
class Family:
    """A family of checkpoints.

    Attributes:
        model_types: outer and text-only; `name` is the main one.
        read_config: raises `ConfigError` with every fault.
        skipped: full-match regular expressions of tensors outside the language model (vision towers, MTP heads).
        prefixes: in place of `root`.
        with_head: family with a required MTP head, or None.
        root: prefix of the decoder's tensor names.
        mtp_counts: config.json fields with the number of MTP layers, which `of` skips.
        renamed: regular expression -> replacement of the start of tensor names; the first match counts, before
            `prefixes`.
        architectures: others are refused.
        mixers: configs of layers with state, for `state_formulas`.
        modules: regular expression -> replacement, from transformers' modules to tensors.
        constants: tensors with numbers that follow from config.json; files with other numbers are refused.
    """

    name: str
    model_types: tuple[str, ...]
    read_config: Callable[[Mapping[str, Any]], DecoderConfig]
    weights: Callable[[DecoderConfig], list[Weight]]
    skipped: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    with_head: "Family | None" = None
    root: str = "model."
    modules: tuple[tuple[str, str], ...] = ()
    architectures: tuple[str, ...] = ()
    mtp_counts: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    mixers: tuple[BranchConfig, ...] = ()
    constants: Callable[[DecoderConfig], Mapping[str, np.ndarray]] = _no_constants

    def of(self, config: Mapping[str, Any]) -> "Family":
        """Return the family with this config.json's MTP layers skipped, up to `MAX_MTP_LAYERS`."""
        layers = config.get("num_hidden_layers")
        count = next((config[name] for name in self.mtp_counts if name in config), None)
        if not isinstance(layers, int) or not isinstance(count, int) or count < 1:
            return self
        numbers = "|".join(str(layers + i) for i in range(min(count, MAX_MTP_LAYERS)))
        return replace(self, skipped=(*self.skipped, rf"{re.escape(self.root)}layers\.({numbers})\..*"))

    def with_mtp(
        self, read_head: Callable[[Mapping[str, Any]], DecoderConfig], skipped: tuple[str, ...] = ()
    ) -> "Family":
        """Return the family with `with_head`, a variant with other skipped tensors."""
        return replace(self, with_head=replace(self, read_config=read_head, skipped=skipped, mtp_counts=()))

    def build(self, config: DecoderConfig, rngs: nnx.Rngs) -> Decoder:
        return Decoder(config, rngs) if config.head is None else MtpDecoder(config, rngs)

    def abstract(self, config: DecoderConfig) -> Decoder:
        return nnx.eval_shape(lambda: self.build(config, ZeroRngs()))

    def state_formulas(self) -> list[str]:
        """Return the bytes of each state array by dimension names, caches in bfloat16."""
        layers = nnx.eval_shape(lambda: [mixer.build(1, ZeroRngs()) for mixer in self.mixers])
        *lines, _ = state_size(layers, jnp.bfloat16).lines
        return [
            line.removeprefix("1 x ").partition(" = ")[0] + (" per token" if line.endswith("per token") else "")
            for line in lines
        ]

    def canonical(self, name: str) -> str:
        """Return a file tensor's name as in `weights`."""
        for pattern, replacement in self.renamed:
            if match := re.match(pattern, name):
                name = match.expand(replacement) + name[match.end() :]
                break
        for prefix in self.prefixes:
            if name.startswith(prefix):
                return self.root + name.removeprefix(prefix)
        return name

    def tensor_names(self, name: str) -> tuple[str, ...]:
        """Return the possible names in `weights` of a parameter of transformers' modules."""
        renamed = canonical = self.canonical(name)
        for pattern, replacement in self.modules:
            renamed = re.sub(pattern, replacement, renamed)
        return tuple(dict.fromkeys((renamed, canonical)))

    def skips(self, name: str) -> bool:
        """Return whether a tensor is skipped."""
        return any(re.fullmatch(pattern, name) for pattern in self.skipped)


def text_family(
    name: str,
    stems: str | Sequence[str],
    read_config: Callable[[Mapping[str, Any]], DecoderConfig],
    weights: Callable[[DecoderConfig], list[Weight]],
    *mixers: type,
    model_types: Sequence[str] = (),
    architectures: Sequence[str] = (),
    **options: Any,
) -> Family:
    """Return a family in this package.

    Args:
        stems: of the names of causal classes.
        mixers: configs of layers with state.
        model_types, architectures: besides `name` and the causal classes; options: as for `Family`.
    """
    classes = (*text_classes(*((stems,) if isinstance(stems, str) else stems)), *architectures)
    types = (name, *model_types)
    return Family(name, types, read_config, weights, architectures=classes, mixers=samples(mixers), **options)
