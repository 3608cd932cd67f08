"""Random numbers: numbers from a key belong to the key's owner."""

from ir_passes.jaxpr import ir
from ir_passes.jaxpr.dtypes import key_implementation
from ir_passes.proof.owners import Owner, axis_of
from ir_passes.proof.registry import rule
from ir_passes.proof.rules.shapes import over
from ir_passes.proof.site import Site
from ir_passes.proof.uniformity import REMEDY, disordered
from ir_passes.proof.values import Value

_ONE_KEY = "one key is made of words of different lanes"
_OWN_KEY = "give each lane all words of its key, along axes of their own"


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
    """Generate from keys; axes of keys precede axes of numbers."""
    return [Value(_by_key(site, key.owner))]


@rule("random_wrap", reads="impl")
def wrap(site: Site, words: Value) -> list[Value]:
    """Wrap words along the last axes as keys."""
    return [Value(_of_one_key(site, words, len(site.shape)))]


@rule("random_gamma", ignores="log_space")
def gamma(site: Site, key: Value, shape: Value) -> list[Value]:
    """Sample by keys; elements with one key get different numbers."""
    owner = _by_key(site, site.join(key.owner, shape.owner))
    if disordered(owner):
        owner = site.mixed("rows in an order that depends on all lanes get random numbers by their place", REMEDY)
    return [Value(owner)]


@rule("random_fold_in")
def fold_in(site: Site, key: Value, data: Value) -> list[Value]:
    """Fold a number into the key at its index."""
    pairs = zip((key, data), site.shapes, strict=True)
    return [Value(_by_key(site, site.join(*(over(value.owner, shape, site.shape) for value, shape in pairs))))]


@rule("rng_bit_generator", reads="shape", ignores="algorithm dtype out_sharding")
def generator(site: Site, key: Value) -> list[Value]:
    """Generate the whole array from one key."""
    owner = _of_one_key(site, key, 0)
    if len(site.shapes[0]) != 1:
        owner = site.mixed("random bits are made from several keys at once", "map over the keys")
    return [Value(owner), Value(owner)]


def _by_key(site: Site, owner: Owner) -> Owner:
    atom = site.eqn.outvars[0] if site.name == "random_seed" else site.eqn.invars[0]
    generator = key_implementation(ir.dtype_of(atom))
    if axis_of(owner) is None or site.name in _BY_KEY.get(generator, ()):
        return owner
    message = f"{generator} makes what all keys of an array get from the first of them"
    return site.mixed(message, "use keys of threefry2x32, as by jax.random.key(seed, impl='threefry2x32')")


def _of_one_key(site: Site, words: Value, leading: int) -> Owner:
    """Return the keys' owner, with words along the axes from `leading` on."""
    axis = axis_of(words.owner)
    return words.owner if axis is None or axis < leading else site.mixed(_ONE_KEY, _OWN_KEY)
