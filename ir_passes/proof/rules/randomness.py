"""Random numbers: numbers from a key belong to the key's owner."""

from ir_passes.jaxpr import ir
from ir_passes.jaxpr.dtypes import key_implementation
from ir_passes.proof import refusals
from ir_passes.proof.owners import Owner, axis_of
from ir_passes.proof.registry import rule
from ir_passes.proof.rules.shapes import over
from ir_passes.proof.site import Site
from ir_passes.proof.uniformity import disordered
from ir_passes.proof.values import Value

_BY_KEY = {
    "threefry2x32": {"random_bits", "random_split", "random_seed", "random_fold_in", "random_gamma"},
    "rbg": {"random_split", "random_seed", "random_fold_in"},
    "unsafe_rbg": {"random_seed"},
}
"""Generator -> operations that give each key of an array its numbers.

XLA's generator takes one key: JAX gives it the first, and the other keys get the numbers that follow.
"""


@rule("random_unwrap", "random_clone")
def same_keys(site: Site, key: Value) -> list[Value]:
    """Keep keys, or unwrap their words along new last axes."""
    return [Value(key.owner)]


@rule("random_bits", "random_split", "random_seed", reads="shape impl", ignores="bit_width")
def from_keys(site: Site, key: Value) -> list[Value]:
    return [Value(_by_key(site, key.owner))]


@rule("random_wrap", reads="impl")
def wrap(site: Site, words: Value) -> list[Value]:
    return [Value(_of_one_key(site, words, len(site.shape)))]


@rule("random_gamma", ignores="log_space")
def gamma(site: Site, key: Value, shape: Value) -> list[Value]:
    """Sample by keys; elements with one key get different numbers."""
    owner = _by_key(site, site.join(key.owner, shape.owner))
    if disordered(owner):
        owner = site.mixed(*refusals.NUMBERS_BY_PLACE)
    return [Value(owner)]


@rule("random_fold_in")
def fold_in(site: Site, key: Value, data: Value) -> list[Value]:
    pairs = zip((key, data), site.shapes, strict=True)
    return [Value(_by_key(site, site.join(*(over(value.owner, shape, site.shape) for value, shape in pairs))))]


@rule("rng_bit_generator", reads="shape", ignores="algorithm dtype out_sharding")
def generator(site: Site, key: Value) -> list[Value]:
    owner = _of_one_key(site, key, 0)
    if len(site.shapes[0]) != 1:
        owner = site.mixed(*refusals.SEVERAL_KEYS)
    return [Value(owner), Value(owner)]


def _by_key(site: Site, owner: Owner) -> Owner:
    atom = site.eqn.outvars[0] if site.name == "random_seed" else site.eqn.invars[0]
    generator = key_implementation(ir.dtype_of(atom))
    if axis_of(owner) is None or site.name in _BY_KEY.get(generator, ()):
        return owner
    return site.mixed(*refusals.FIRST_KEY(generator=generator))


def _of_one_key(site: Site, words: Value, leading: int) -> Owner:
    return site.apart(words.owner, range(leading, len(site.shapes[0])), refusals.ONE_KEY)
