"""Load a checkpoint of single-expert tensors; print memory and read tensors.

python load_memory.py toy FOLDER STORED WANTED DEVICES       parameters of every kind, `model` axis of DEVICES devices
python load_memory.py lm FOLDER STORED WANTED                a model, by `hybridlm.load`
python load_memory.py packed FOLDER SCHEME DEQUANTISE        a quantised model; DEQUANTISE is a dtype, or ""
python load_memory.py write FOLDER TYPE                      a GGUF file with blocks of TYPE, which nothing measures
python load_memory.py gguf FOLDER TYPE DEQUANTISE            a model of that file
python load_memory.py share FOLDER STORED WANTED PORT COUNT NUMBER    one of COUNT processes that share the experts

STORED and WANTED are dtypes, SCHEME one of `hybridlm quantise`; the checkpoint is written to FOLDER unless it is there.
Sizes are in bytes.
"""

import gc
import json
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import jax
import ml_dtypes
import numpy as np

import hybridlm
from hybridlm.checkpoint import CheckpointDirectory, OpenModel, load_parameters, open_directory
from hybridlm.checkpoint.quantise import quantise_checkpoint
from hybridlm.devices.placement import Placement
from hybridlm.families import rows as rows_of
from hybridlm.families import shard_outputs
from models import Family, Segment, ShardedDim, Weight, WeightSource, family_of
from models.sharding.sharded_dim import shard_experts
from models.weights.sources import stacked

ROWS, COLUMNS, LAYERS = 2048, 4096, 8
EXPERTS, EXPERT_ROWS = 64, 128
"""The stack of experts is eight times as large as the largest tensor."""

MODEL: dict[str, Any] = {
    "model_type": "qwen3_5_moe", "vocab_size": 4096, "hidden_size": 512, "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"], "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
    "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4, "num_experts": 64, "num_experts_per_tok": 2,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 64, "eos_token_id": 0,
}  # fmt: skip
WIDE = MODEL | {"model_type": "qwen3_5", "hidden_size": 1024, "intermediate_size": 24576}
"""Model with MLP matrices of 25 million numbers each."""
SMALL = WIDE | {"intermediate_size": 256, "vocab_size": 64}
GGUF: dict[str, Any] = {
    "vocab_size": 97,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [4, 2, 2]},
}
"""Fields that a GGUF file names, and as many tokens as its tokenizer has."""


def toy_weights(_: Any) -> list[Weight]:
    """Tensors unchanged, experts that are stacked, rows in another order."""
    plain = [
        Weight((f"plain.{i}",), (ROWS, COLUMNS), (WeightSource({f"plain.{i}": (ROWS, COLUMNS)}),))
        for i in range(LAYERS)
    ]
    names = [[f"expert.{e}.gate", f"expert.{e}.up"] for e in range(EXPERTS)]
    stack = Weight(("experts",), (EXPERTS, 2 * EXPERT_ROWS, COLUMNS), (stacked(names, (EXPERT_ROWS, COLUMNS)),))
    turned = rows_of("rows", (ROWS, COLUMNS), np.arange(ROWS)[::-1])
    return [*plain, stack, Weight(("rows",), (ROWS, COLUMNS), (turned,))]


def _no_config(_: Mapping[str, Any]) -> Any:
    raise AssertionError("not read here")


TOY = Family("toy", ("toy",), _no_config, toy_weights, (), ())


def write(folder: Path, config: Mapping[str, Any], weights: list[Weight], dtype: str) -> None:
    """Write the last layout of each parameter: one tensor per expert."""
    folder.mkdir(exist_ok=True)
    if (folder / "config.json").exists():
        return
    header, offset = {}, 0
    for weight in weights:
        for name, shape in weight.options[-1].shapes.items():
            size = int(np.prod(shape)) * 2
            kind = {"bfloat16": "BF16", "float16": "F16"}[dtype]
            header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + size]}
            offset += size
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        block = np.arange(1 << 20, dtype=np.float32).astype(ml_dtypes.bfloat16).tobytes()
        for start in range(0, offset, len(block)):
            file.write(block[: offset - start])
    (folder / "config.json").write_text(json.dumps(config))


def toy_cuts(axis: str) -> dict[tuple[str | int, ...], tuple[ShardedDim, ...]]:
    """Cuts along `model`: row parts, expert columns, reordered rows; along `expert`: experts."""
    if axis == "expert":
        return {("experts",): (shard_experts(EXPERTS),)}
    halves = (shard_outputs(*(Segment(ROWS // 2, ROWS // 2),) * 2),)
    cuts: dict[tuple[str | int, ...], tuple[ShardedDim, ...]] = {(f"plain.{i}",): halves for i in range(LAYERS)}
    return cuts | {("experts",): (ShardedDim(2, "model", (Segment(COLUMNS, COLUMNS),)),), ("rows",): halves}


def anonymous() -> int:
    """Bytes of this process's memory that no file backs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


def measure(load: Callable[[], list[jax.Array]]) -> dict[str, Any]:
    """Bytes for loading: peak and end above the start; kept bytes; reads."""
    read, reads = CheckpointDirectory.read, []

    def counted(self: CheckpointDirectory, name: str) -> np.ndarray:
        reads.append(name)
        return read(self, name)

    CheckpointDirectory.read = counted
    gc.collect()
    start = anonymous()
    peak, stop = [start], threading.Event()

    def sample() -> None:
        while not stop.wait(0.0005):
            peak[0] = max(peak[0], anonymous())

    thread = threading.Thread(target=sample)
    thread.start()
    arrays = load()
    end = anonymous()
    stop.set()
    thread.join()
    total = sum(shard.data.nbytes for array in arrays for shard in array.addressable_shards)
    return {"peak": max(peak[0], end) - start, "end": end - start, "kept": total, "reads": reads}


def write_blocks(folder: Path, config: Mapping[str, Any], kind: str) -> None:
    sys.path.append(str(Path(__file__).resolve().parents[1] / "checkpoints"))
    from gguf import GGMLQuantizationType
    from gguf_checkpoint import write_gguf

    write(folder, config, family_of(config).weights(family_of(config).read_config(config)), "bfloat16")
    # The checkpoint's random numbers are invalid as decays and as their exponentials.
    decays = {"blk.0.ssm_a": -np.ones(config["linear_num_value_heads"], np.float32)}
    write_gguf(folder / "model.gguf", "qwen35", GGMLQuantizationType[kind], changes=decays, source=folder)


def main(case: str, folder: Path, stored: str, wanted: str = "", *args: str) -> None:
    if case == "write":
        write_blocks(folder, WIDE | GGUF, stored)
        write_blocks(folder / "small", SMALL | GGUF, stored)
        print("{}")
        return
    if case == "gguf":
        settings: dict[str, Any] = {"lanes": 1, "context": 8, "chunk": 4, "compilation_cache": False}

        def load() -> list[jax.Array]:
            lm = hybridlm.load(folder / "model.gguf", dequantise=wanted or None, **settings)
            return jax.tree.leaves(list(lm.params.values()))

        hybridlm.load(folder / "small" / "model.gguf", dequantise=wanted or None, **settings)
    elif case == "packed":
        write(folder, WIDE, family_of(WIDE).weights(family_of(WIDE).read_config(WIDE)), "bfloat16")
        write(folder / "small", SMALL, family_of(SMALL).weights(family_of(SMALL).read_config(SMALL)), "bfloat16")
        for name in (".", "small"):
            quantise_checkpoint(folder / name, folder / name / "quantised", scheme=stored, group_size=None)
        settings = {"lanes": 1, "context": 8, "chunk": 4, "compilation_cache": False}

        def load() -> list[jax.Array]:
            lm = hybridlm.load(folder / "quantised", dequantise=wanted or None, **settings)
            return jax.tree.leaves(list(lm.params.values()))

        hybridlm.load(folder / "small" / "quantised", dequantise=wanted or None, **settings)
    elif case == "lm":
        family = family_of(MODEL)
        write(folder, MODEL, family.weights(family.read_config(MODEL)), stored)

        def load() -> list[jax.Array]:
            lm = hybridlm.load(folder, lanes=1, context=8, dtype=wanted, compilation_cache=False, chunk=4)
            return list(lm.params.values())

        # Further needs of a process's first model: modules, traces.
        small = MODEL | {"moe_intermediate_size": 8, "vocab_size": 64}
        write(folder / "small", small, family.weights(family.read_config(small)), stored)
        hybridlm.load(folder / "small", lanes=1, context=8, dtype=wanted, compilation_cache=False, chunk=4)
    else:
        write(folder, {}, toy_weights(None), stored)
        shards = {}
        if case == "share":
            port, count, number = map(int, args)
            jax.distributed.initialize(f"127.0.0.1:{port}", count, number)
            shards = Placement(hybridlm.mesh(expert=count)).shards(toy_weights(None), toy_cuts("expert"))
        elif int(args[0]) > 1:
            shards = Placement(hybridlm.mesh(model=int(args[0]))).shards(toy_weights(None), toy_cuts("model"))
        checkpoint = open_directory(folder)

        def load() -> list[jax.Array]:
            model = OpenModel(checkpoint, TOY, cast(Any, None))  # the toy has no configuration
            return list(load_parameters(model, wanted, shards=shards).arrays.values())

        jax.block_until_ready(jax.device_put(np.zeros(8, np.float32)))
    print(json.dumps(measure(load)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
