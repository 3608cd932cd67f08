"""Fingerprint of every bit of the parameters of a model in memory."""

import hashlib
import json
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

SEEDS = (0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F)
"""Seeds of the four words of an array's digest, constants of well-known hash functions."""
_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


def content_fingerprint(params: Mapping[str, Array], description: str) -> str:
    """Return a SHA-256 of a description and of each parameter's name, dtype, shape and bits.

    Each device reduces its bits, to 128 for each parameter: one pass over the weights. This finds every accidental
    change. The same weights have another fingerprint over a mesh with another order of their parts.

    Args:
        description: description of everything else that the fingerprint covers.

    Returns:
        64 hexadecimal digits.
    """
    digest = hashlib.sha256(description.encode())
    words = jax.device_get({name: array_digest(array) for name, array in params.items()})
    for name in sorted(words):
        array = params[name]
        digest.update(json.dumps([name, str(array.dtype), array.shape, words[name].tolist()]).encode())
    return digest.hexdigest()


@jax.jit
def array_digest(x: Array) -> Array:
    """Return uint32 [4]: sums of mixed bits and places, for every order of summation."""
    bits = lax.bitcast_convert_type(x, _UNSIGNED[x.dtype.itemsize]).astype(jnp.uint32)
    place = jnp.zeros(x.shape, jnp.uint32)
    stride = 1
    for dim in reversed(range(x.ndim)):
        place += lax.broadcasted_iota(jnp.uint32, x.shape, dim) * np.uint32(stride % (1 << 32))
        stride *= x.shape[dim]
    words = [jnp.sum(_mixed(bits ^ _mixed(place + np.uint32(seed))), dtype=jnp.uint32) for seed in SEEDS]
    return jnp.stack(words)


def _mixed(x: Array) -> Array:
    """Return a bijective mix of the bits of each word (the finalizer of MurmurHash3)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))
