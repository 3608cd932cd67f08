"""Measure the seconds to trace and prove a deep decoding step with page tables.

    python scripts/benchmarks/measure_page_proof.py [--layers 48] [--lanes 8] [--repeats 3]

The seconds are of one core. Every layer writes its keys and values to the page of each lane's position, reads all pages
of the lane, attends, and has an MLP. Nothing is compiled or run, and no weights are needed.
"""

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp

from hybridlm.compiler import Lane, LaneContract, PageTable, Pool, Shared, prove_isolation

PAGES, PAGE, WIDE = 256, 16, 16
"""Pages of a pool, tokens of a page, pages of a lane."""
HIDDEN, INNER, HEADS, GROUPS, SIZE = 256, 512, 8, 2, 64
CONTRACT = LaneContract(
    (Shared(), Pool("kv"), PageTable("kv", PAGES), Lane(), Lane(), Lane(role="active")), (Lane(), Pool("kv"))
)


def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def layer(w: Any, cache: Any, table: jax.Array, page: jax.Array, positions: jax.Array, x: jax.Array) -> Any:
    lanes, h = len(x), norm(x, w["attention"])
    q = (h @ w["q"]).reshape(lanes, GROUPS, HEADS // GROUPS, SIZE)
    new = {name: (h @ w[name]).reshape(lanes, GROUPS, SIZE) for name in ("k", "v")}
    cache = {name: cache[name].at[page, positions % PAGE].set(new[name], mode="drop") for name in new}
    k, v = (cache[name][table].reshape(lanes, WIDE * PAGE, GROUPS, SIZE) for name in ("k", "v"))
    visible = jnp.arange(WIDE * PAGE)[None] <= positions[:, None]
    scores = jnp.where(visible[:, None, None], jnp.einsum("nkgd,nckd->nkgc", q, k) * SIZE**-0.5, -jnp.inf)
    y = jnp.einsum("nkgc,nckd->nkgd", jax.nn.softmax(scores, -1), jnp.where(visible[:, :, None, None], v, 0.0))
    x = x + y.reshape(lanes, -1) @ w["o"]
    h = norm(x, w["mlp"])
    return x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"], cache


def step(weights: Any, caches: Any, table: Any, positions: Any, x: Any, active: Any) -> Any:
    page = jnp.take_along_axis(table, (positions // PAGE)[:, None], axis=1)[:, 0]
    page, new = jnp.where(active, page, PAGES), []
    for w, cache in zip(weights, caches, strict=True):
        x, cache = layer(w, cache, table, page, positions, x)
        new.append(cache)
    return x, new


def arguments(layers: int, lanes: int) -> tuple[Any, ...]:
    def of(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    products = {"q": HEADS * SIZE, "k": GROUPS * SIZE, "v": GROUPS * SIZE, "gate": INNER, "up": INNER}
    weights = {name: of(HIDDEN, size) for name, size in products.items()}
    weights |= {"o": of(HEADS * SIZE, HIDDEN), "down": of(INNER, HIDDEN), "attention": of(HIDDEN), "mlp": of(HIDDEN)}
    cache = {name: of(PAGES, PAGE, GROUPS, SIZE) for name in ("k", "v")}
    ints = of(lanes, WIDE, dtype=jnp.int32), of(lanes, dtype=jnp.int32)
    return [weights] * layers, [cache] * layers, *ints, of(lanes, HIDDEN), of(lanes, dtype=jnp.bool_)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    args = arguments(options.layers, options.lanes)
    for _ in range(options.repeats):
        jax.clear_caches()
        begin = time.process_time()
        proof = prove_isolation(step, args, CONTRACT)
        claims = ", ".join(claim.id for claim in proof.proved)
        print(f"{time.process_time() - begin:.2f} s: {proof.equations} equations; {claims}", flush=True)


if __name__ == "__main__":
    main()
