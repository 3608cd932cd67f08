"""Random numbers: each key's are its owner's."""

from ir_passes.rules.registry import rule
from ir_passes.site import Site
from ir_passes.values import Value


@rule("random_bits", "random_split", "random_wrap", "random_unwrap", "random_seed", "random_clone", "random_gamma")
def from_keys(site: Site, *keys: Value) -> list[Value]:
    """Keys keep their leading axes; what is made from one key stands behind them."""
    return [Value(site.join(*(key.owner for key in keys)))]


@rule("random_fold_in")
def fold_in(site: Site, key: Value, data: Value) -> list[Value]:
    """A key and a number of the same place."""
    return [Value(site.join(key.owner, data.owner))]


@rule("rng_bit_generator")
def generator(site: Site, key: Value) -> list[Value]:
    """One key for the whole array."""
    owner = key.owner
    if not site.shapes[0] or len(site.shapes[0]) > 1:
        owner = site.mixed("random bits are made from several keys at once", "map over the keys")
    return [Value(owner), Value(owner)]
