"""Reader of RoPE settings in config.json, for frequencies independent of the sequence."""

import math
from collections.abc import Mapping, Sequence

from models.config.reader import ConfigReader
from models.layers.rope import Llama3Scaling, ProportionalScaling, Rope, Scaling, YarnScaling

TYPES = ("default", "mrope", "dynamic", "linear", "yarn", "llama3")
"""Implemented types; "dynamic" is plain RoPE up to `max_position_embeddings`."""


def read_rope(reader: ConfigReader, head_dim: int, theta: float, partial: float | None, positions: int) -> Rope:
    """Read RoPE settings from `rope_scaling`, `rope_parameters`, or older top-level fields.

    They take precedence in this order, as in transformers.

    Args:
        theta, partial, positions: defaults of `rope_theta`, `partial_rotary_factor` and `max_position_embeddings`;
            None for a family that rotates whole heads, where transformers ignores this factor.
    """
    places = [reader.child("rope_scaling"), reader.child("rope_parameters")]
    place = next((place for place in places if place is not None and not place.empty), reader)
    theta = place.number("rope_theta", reader.number("rope_theta", theta))
    factor = place.number("partial_rotary_factor", reader.number("partial_rotary_factor", partial or 1.0))
    where = place if "partial_rotary_factor" in place else reader
    if partial is None and factor != 1.0:
        where.fault("partial_rotary_factor", f"1, as {reader.family} rotates whole heads")
        factor = 1.0
    size = int(head_dim * factor)
    if size % 2 or not 0 < size <= head_dim:
        where.fault("partial_rotary_factor", f"an even number of rotated dimensions of {head_dim}, not {size}")
        size = 2
    for nested in filter(None, places):
        for name in ("rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved"):
            nested.get(name)
        for name in nested.objects():
            nested.fault(name, "one RoPE for all layers")
    return Rope(size, theta, None if place is reader else _read_scaling(reader, place, positions))


def read_ropes(reader: ConfigReader, head_dim: int, defaults: Mapping[str, Rope], theta: float) -> dict[str, Rope]:
    """Read `rope_parameters` with an object for each kind of layer: "default" or "proportional" RoPE.

    Args:
        defaults: RoPE of each kind without `rope_parameters`.
        theta: default of `rope_theta` within them.
    """
    reader.choice("rope_scaling", [{}], None)  # transformers would take it for all kinds, and fail
    theta = reader.number("rope_theta", theta)
    share = reader.number("partial_rotary_factor", 1.0)
    outer = reader.child("rope_parameters")
    if outer is None:
        return dict(defaults)
    for kind in {"full_attention", "sliding_attention"} - defaults.keys():
        outer.get(kind)
    ropes = {}
    for kind, rope in defaults.items():
        place = outer.child(kind)
        if place is None:
            outer.fault(kind, "an object with rope_type and rope_theta")
            ropes[kind] = rope
            continue
        proportional = _read_type(place, ("default", "proportional")) == "proportional"
        base, part = place.number("rope_theta", theta), place.number("partial_rotary_factor", share)
        if part > 1:
            place.fault("partial_rotary_factor", "a share of the head, at most 1")
        # As in transformers, plain RoPE rotates whole heads.
        scaling = ProportionalScaling(int(part * head_dim // 2), place.number("factor", 1.0)) if proportional else None
        ropes[kind] = Rope(head_dim, base, scaling)
    return ropes


def _read_type(place: ConfigReader, types: Sequence[str]) -> str:
    """Read `rope_type`, or `type` in older files."""
    kind = place.choice("rope_type" if "rope_type" in place or "type" not in place else "type", types, "default")
    place.get("type")
    return kind


def _read_scaling(reader: ConfigReader, place: ConfigReader, positions: int) -> Scaling | None:
    kind = _read_type(place, TYPES)
    if kind in ("default", "mrope"):
        return None
    spelled = "model_max_length" in reader
    positions = reader.integer("model_max_length" if spelled else "max_position_embeddings", positions)
    if kind == "dynamic":
        place.number("factor")
        return None
    if kind == "linear":
        return ProportionalScaling(None, place.number("factor"))
    outer = reader if "original_max_position_embeddings" in reader else place
    # With `model_max_length`, transformers takes the default of the family as the original context.
    original = outer.number("original_max_position_embeddings", None if spelled else float(positions))
    place.get("original_max_position_embeddings")
    if kind == "llama3":
        low, high = place.number("low_freq_factor"), place.number("high_freq_factor")
        if not low < high:
            place.fault("high_freq_factor", f"more than low_freq_factor ({low})")
            high = low + 1
        return Llama3Scaling(place.number("factor"), original, low, high)
    if "factor" not in place and original >= positions:
        place.fault("factor", "a number greater than 1, or original_max_position_embeddings")
    factor = place.number("factor", max(positions / original, 1.0))
    mscale, all_dim = place.number("mscale", 0.0, minimum=-1e-9), place.number("mscale_all_dim", 0.0, minimum=-1e-9)
    amplitude = yarn_mscale(factor, 1.0)
    if mscale > 0 and all_dim > 0:
        amplitude = yarn_mscale(factor, mscale) / yarn_mscale(factor, all_dim)
    return YarnScaling(
        factor,
        original,
        place.number("attention_factor", amplitude),
        place.number("beta_fast", 32.0),
        place.number("beta_slow", 1.0),
        place.flag("truncate", True),
    )


def yarn_mscale(factor: float, scale: float) -> float:
    """Return YaRN's factor on scores for a context extended `factor` times."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def yarn_score_factor(fields: Mapping[str, object] | None) -> float:
    """Return the factor of `mscale_all_dim` on the scores of latent attention (MLA)."""
    fields = fields or {}
    kind = fields.get("rope_type", fields.get("type", "default"))
    factor, all_dim = fields.get("factor"), fields.get("mscale_all_dim")
    if kind == "default" or not isinstance(all_dim, int | float) or not isinstance(factor, int | float) or not all_dim:
        return 1.0
    return yarn_mscale(factor, all_dim) ** 2


def max_positions(positions: int, rope: Rope | None) -> int:
    """Return the longest context, with an extension by YaRN."""
    if rope is not None and isinstance(rope.scaling, YarnScaling):
        return max(positions, int(rope.scaling.factor * rope.scaling.original))
    return positions
