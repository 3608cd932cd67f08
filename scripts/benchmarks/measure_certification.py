"""Measure the time of proof, rewrites and audit relative to XLA's compilation.

    python scripts/benchmarks/measure_certification.py [--model 131M] [--lanes 8] [--repeats 3]

Prints medians for Qwen3.5-shaped models, without caches and weights. `certify` is proof, rewrites and audit together,
as a share of XLA's compile time.
"""

import argparse
import statistics
from typing import Any

import jax
import jax.numpy as jnp
from bench_models import BENCH_MODELS, COMMON

from hybridlm import compiler, models
from hybridlm.engine.config import ResolvedConfig
from hybridlm.engine.engine import Engine
from hybridlm.programs.programs import PASSES, Programs, may_copy
from hybridlm.steps.structure import flatten

CONFIGS = BENCH_MODELS | {
    "48 layers": COMMON
    | {
        "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 48,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "linear_num_key_heads": 4,
        "linear_num_value_heads": 8, "linear_key_head_dim": 32, "linear_value_head_dim": 64,
    },
}  # fmt: skip


def step_of(
    name: str, lanes: int, tokens: int
) -> tuple[Any, compiler.LaneContract, tuple[Any, ...], int, tuple[str, ...]]:
    """Return a step, contract, abstract arguments, number of parameters, and pools with allowed copies."""
    family = models.family_of(CONFIGS[name])
    config = family.read_config(CONFIGS[name])
    model = family.abstract(config)
    structure, params = flatten(model)
    params: Any = tuple(jax.ShapeDtypeStruct(p.shape, jnp.bfloat16 if p.ndim > 1 else p.dtype) for p in params)
    programs = Programs(structure)
    engine = Engine(model, params, programs, ResolvedConfig(lanes=lanes, context=4096, chunk=tokens), name)
    shape = engine.shape("generate", lanes, tokens)
    return *programs.step(shape), engine.example_arguments(shape), sum(p.size for p in params), may_copy(structure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*CONFIGS, "all"], default="131M")
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--tokens", type=int, nargs="*", default=[1, 64])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)
    columns = ("trace", "prove", "rewrite", "lower", "compile", "audit")
    print(f"{'step':24} {'params':>8} " + " ".join(f"{column:>8}" for column in columns) + "  certify")
    for name in CONFIGS if options.model == "all" else [options.model]:
        for tokens in options.tokens:
            runs = []
            for _ in range(options.repeats):
                jax.clear_caches()
                step, contract, args, size, pools = step_of(name, options.lanes, tokens)
                certificate = compiler.compile_step(step, args, contract, passes=PASSES, may_copy=pools).certificate
                runs.append(certificate.seconds)
            median = {column: statistics.median(getattr(run, column) for run in runs) for column in columns}
            share = statistics.median(run.checking for run in runs)
            label = f"{name}, {options.lanes} x {tokens}"
            cells = " ".join(f"{median[column]:8.2f}" for column in columns)
            print(f"{label:24} {size / 1e6:7.0f}M {cells} {share:8.0%}", flush=True)


if __name__ == "__main__":
    main()
