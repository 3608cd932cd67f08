"""Write a benchmark model with random weights, in the format of Hugging Face.

    python scripts/benchmarks/make_bench_checkpoint.py 131M /data/bench/131M [--seed 0] [--head]

bench_models.py has the configurations. The weights are bfloat16. The tokenizer is the embedded model's, with the first
ids. llama.cpp's converter accepts it if `get_vocab_base_pre` returns "gpt-2" for an unknown tokenizer.
"""

import argparse
import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from bench_models import BENCH_MODELS
from safetensors.numpy import save_file

from hybridlm import demo, models
from hybridlm.checkpoint.model import with_head

OUTPUTS = ("out_proj", "o_proj", "down_proj", "w2")
"""Matrices that write to the residual stream."""


def values(name: str, shape: tuple[int, ...], config: models.DecoderConfig, rng: np.random.Generator) -> np.ndarray:
    """Return one tensor in float32.

    A matrix preserves the magnitude of its input; matrices that write to the residual stream are scaled down by the
    number of writes. Norm weights are stored minus the family's offset, except the norm after the recurrence.
    """
    last = name.removesuffix(".weight").rpartition(".")[2]
    if last == "A_log":
        return np.log(rng.uniform(0.5, 8.0, shape)).astype(np.float32)
    if last == "dt_bias":
        return rng.uniform(-4.0, 0.0, shape).astype(np.float32)
    if len(shape) == 1:
        behind_recurrence = last == "norm" and ".linear_attn." in name
        is_scale = last == "D" or "norm" in last
        middle = 0.0 if not is_scale else 1.0 if behind_recurrence else 1.0 - config.norm_offset
        return (middle + rng.uniform(-0.3, 0.3, shape)).astype(np.float32)
    scale = shape[-1] ** -0.5
    if last in OUTPUTS:
        scale *= (2 * len(config.layers)) ** -0.5
    return rng.standard_normal(shape, np.float32) * np.float32(scale)


def tensors(config: dict[str, Any], seed: int, head: bool = False) -> dict[str, np.ndarray]:
    """Return every bfloat16 tensor by Hugging Face name."""
    family = with_head(models.family_of(config)) if head else models.family_of(config)
    read = family.read_config(config)
    weights: list[models.Weight] = family.weights(read)
    result = {}
    for weight in weights:
        for name, shape in weight.options[0].shapes.items():
            rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
            result[name] = values(name, shape, read, rng).astype(ml_dtypes.bfloat16)
    return result


def write(directory: Path, config: dict[str, Any], seed: int, head: bool = False) -> int:
    """Write the files; return the number of parameters."""
    directory.mkdir(parents=True, exist_ok=True)
    arrays = tensors(config, seed, head)
    save_file(arrays, directory / "model.safetensors", {"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(demo.path() / name, directory / name)
    return sum(tensor.size for tensor in arrays.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=list(BENCH_MODELS))
    parser.add_argument("directory", type=Path, help="outside the repository")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--head", action="store_true", help="with a multi-token-prediction head (131M and 752M)")
    options = parser.parse_args()
    size = write(options.directory, BENCH_MODELS[options.model], options.seed, options.head)
    print(f"{options.directory}: {size / 1e6:.1f}M parameters")


if __name__ == "__main__":
    main()
