"""LoRA adapters of PEFT, merged into parameters.

adapter_config.json          rank, alpha and the adapted modules
adapter_model.safetensors    two factors per adapted matrix, and tensors that were trained as a whole
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from hybridlm.checkpoint.cast import aligned_empty, convert, finite_tensor, require_finite_tensor
from hybridlm.checkpoint.safetensors import ArrayFile, open_safetensors
from hybridlm.checkpoint.shards import Shards, build_together
from hybridlm.errors import CheckpointError
from hybridlm.files.strict_json import MEGABYTE, is_positive, read_object
from models import Weight
from models.weights.sources import ArraySlice, WeightSource

CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
MAX_CONFIG_BYTES = 16 * MEGABYTE
DECISION, JUDGE = "decision.json", "judge_config.json"
# Fields without effect on a trained adapter. Any other field must be empty (null, false), or it is refused: PEFT fills
# it for a variant.
UNUSED = frozenset(
    """auto_mapping base_model_name_or_path revision inference_mode task_type peft_version target_modules
    target_parameters exclude_modules layers_to_transform layers_pattern lora_dropout bias modules_to_save
    fan_in_fan_out megatron_core loftq_config eva_config corda_config lora_ga_config runtime_config
    qalora_group_size""".split()
)
READ = frozenset("peft_type r lora_alpha use_rslora rank_pattern alpha_pattern init_lora_weights".split())
# Initial values without effect on the base weights; others change them before training.
INITIAL = (True, False, None, "gaussian", "eva", "orthogonal")
MERGE_ELSEWHERE = (
    "Merge it with PEFT and save the result: "
    "PeftModel.from_pretrained(base, adapter).merge_and_unload().save_pretrained(directory)."
)


class Factors(NamedTuple):
    """The low-rank factors of one adapted tensor.

    Attributes:
        down, up: the tensors A and B.
        embedding: the product is transposed.
        experts: matrices in one tensor; None for a single matrix.
    """

    down: str
    up: str
    scale: float
    embedding: bool
    experts: int | None = None


@dataclass(frozen=True)
class Adapter:
    """An opened adapter with checked headers; no tensor has been read.

    Attributes:
        digest: SHA-256 of both files.
    """

    path: Path
    config: Mapping[str, Any]
    file: ArrayFile
    digest: str

    def array(self, name: str) -> np.ndarray:
        """Return a tensor in float32; raises CheckpointError unless it is finite."""
        return finite_tensor(self.file.path, name, self.file.read(name))


@dataclass(frozen=True)
class BoundAdapter:
    """An adapter matched with the tensors of a model.

    Attributes:
        factors: by canonical tensor name.
        replaced: canonical name -> name in the file.
        skipped: tensors of unread parts (vision towers).
    """

    adapter: Adapter
    factors: Mapping[str, Factors]
    replaced: Mapping[str, str]
    skipped: tuple[str, ...]

    @property
    def sentence(self) -> str:
        replaced = f", {len(self.replaced)} tensors replaced" if self.replaced else ""
        unused = f", {len(self.skipped)} tensors of parts that are not read left out" if self.skipped else ""
        return f"{self.adapter.path}: LoRA adapter merged into {len(self.factors)} tensors{replaced}{unused}"

    def touches(self, weight: Weight) -> bool:
        return any(name in self.factors or name in self.replaced for name, _ in tensors_of(weight))

    def merge(self, weight: Weight, windows: Sequence[tuple[ArraySlice, ArraySlice]], result: np.ndarray) -> None:
        """Apply the adapter to float32 pieces of a parameter, in place.

        Args:
            windows: place in the parameter and in the result, by piece.
        """
        for name, source in tensors_of(weight):
            if name in self.replaced:
                _place(weight, source, name, self.adapter.array(self.replaced[name]), windows, result, add=False)
            if name in self.factors:
                with np.errstate(all="ignore"):  # checked below
                    product = self._product(self.factors[name])
                require_finite_tensor(self.adapter.file.path, f"the change of {name}", product)
                _place(weight, source, name, product.reshape(source.shapes[name]), windows, result, add=True)

    def _product(self, f: Factors) -> np.ndarray:
        """Return a tensor's change in float32; large factors or scales overflow."""
        down, up = self.adapter.array(f.down), self.adapter.array(f.up)
        if f.embedding:
            return (up @ down).T * np.float32(f.scale)
        if f.experts is None:
            return (up @ down) * np.float32(f.scale)
        down = down.reshape(f.experts, -1, down.shape[1])
        up = np.moveaxis(up.reshape(up.shape[0], -1, f.experts), 2, 0)
        return np.matmul(up, down) * np.float32(f.scale)


def tensors_of(weight: Weight) -> Iterator[tuple[str, WeightSource]]:
    """Yield a parameter's tensors with their first sources."""
    names: set[str] = set()
    for source in (*weight.options, *weight.adapted):
        for name in source.shapes:
            if name not in names:
                names.add(name)
                yield name, source


def _place(
    weight: Weight,
    source: WeightSource,
    name: str,
    tensor: np.ndarray,
    windows: Sequence[tuple[ArraySlice, ArraySlice]],
    result: np.ndarray,
    add: bool,
) -> None:
    for window, target in windows:
        part = result[(*target, ...)]
        for piece in source.pieces(window, weight.shape):
            if piece.name == name:
                place, values = part[(*piece.place, ...)], source.take(tensor, piece.taken)
                place[...] = place + values if add else values


def build_merged(
    shards: Shards,
    weight: Weight,
    kind: np.dtype,
    adapters: Sequence[BoundAdapter],
    path: Path,
    names: Iterable[str],
    fill: Callable[[ArraySlice, np.ndarray], None],
) -> jax.Array:
    """Build a parameter on its devices, with merged adapters.

    Args:
        path, names: of the checkpoint and the parameter's tensors, for errors.
        fill: write a window of the parameter into an array; in float32 for adapters.
    """

    def host(starts: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        # A view would change with the file.
        result = aligned_empty(shards.local_shape, np.dtype(np.float32) if adapters else kind)
        pieces = list(shards.windows(starts[""]))
        for window, target in pieces:
            # The ellipsis makes the index of a scalar a view.
            fill(window, result[(*target, ...)])
        for adapter in adapters:
            adapter.merge(weight, pieces, result)
        if adapters:
            merged, result = result, aligned_empty(shards.local_shape, kind)
            convert(merged, result, path, names)
        return {"": result}

    return jax.block_until_ready(build_together({"": shards}, host)[""])


def has_adapter(directory: Path) -> bool:
    return (directory / CONFIG).is_file()


def own_adapter(directory: Path) -> Path | None:
    """Return the folder that `load` merges; raises CheckpointError."""
    if has_adapter(directory):
        return directory
    folder = adapter_folder(directory)
    return None if folder is None else directory / folder


def adapter_folder(directory: Path) -> str | None:
    """Return a decision model's adapter folder; raises CheckpointError."""
    if (directory / JUDGE).is_file():
        name = read_object(directory / JUDGE, MAX_CONFIG_BYTES).get("adapter_subfolder", "adapter")
    elif (directory / DECISION).is_file():
        name = read_object(directory / DECISION, MAX_CONFIG_BYTES).get("adapter")
    else:
        return None
    if name is not None and (
        not isinstance(name, str) or not name or Path(name).is_absolute() or ".." in Path(name).parts
    ):
        raise CheckpointError(directory, f"adapter: expected the name of a folder in the directory, found {name!r}")
    return name


def base_of(directory: Path) -> str:
    """Return the base model's directory or hub id; raises CheckpointError without one."""
    name = read_object(directory / CONFIG, MAX_CONFIG_BYTES).get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise CheckpointError(
            directory,
            f"holds a LoRA adapter alone, and its {CONFIG} names no base model (base_model_name_or_path)",
            "Load the base model and give this directory as adapter.",
        )
    return name


def open_adapter(path: str | os.PathLike[str]) -> Adapter:
    """Open a PEFT adapter and check its configuration.

    Raises:
        CheckpointError: no adapter, a pickle, another method, or an unmergeable LoRA variant.
    """
    directory = Path(path)
    if not has_adapter(directory):
        raise CheckpointError(directory, f"expected a PEFT adapter ({CONFIG} and {WEIGHTS}), found no {CONFIG}")
    config = read_object(directory / CONFIG, MAX_CONFIG_BYTES)
    faults = _config_faults(config)
    if faults:
        raise CheckpointError(directory, [f"{CONFIG}: {fault}" for fault in faults], MERGE_ELSEWHERE)
    if not (directory / WEIGHTS).exists():
        pickle = (directory / PICKLE).exists()
        raise CheckpointError(
            directory,
            f"expected {WEIGHTS}, found {PICKLE}, a pickle, which can run any code" if pickle else f"no {WEIGHTS}",
            "Load the adapter with PEFT where you trust it, and save_pretrained writes safetensors." if pickle else "",
        )
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    with (directory / WEIGHTS).open("rb") as file:
        digest.update(hashlib.file_digest(file, "sha256").digest())
    return Adapter(directory, config, open_safetensors(directory / WEIGHTS), digest.hexdigest())


def _config_faults(config: Mapping[str, Any]) -> list[str]:
    faults = []
    if config.get("peft_type") != "LORA":
        return [f"peft_type: expected 'LORA', found {config.get('peft_type')!r}"]
    if config.get("use_dora"):
        faults.append("use_dora: DoRA is not implemented, only plain LoRA and rsLoRA")
    initial = config.get("init_lora_weights", True)
    if not (isinstance(initial, bool | str | None) and initial in INITIAL):
        faults.append(f"init_lora_weights: {initial!r} changes the base weights, which are not those of the checkpoint")
    for name in ("r", "lora_alpha"):
        if not is_positive(config.get(name, 8)):
            faults.append(f"{name}: expected a number greater than 0, found {config[name]!r}")
    for name in ("rank_pattern", "alpha_pattern"):
        pattern = config.get(name) or {}
        if not isinstance(pattern, dict) or not all(map(is_positive, pattern.values())):
            faults.append(f"{name}: expected an object of numbers greater than 0, found {pattern!r}")
        else:
            faults += [f"{name}: {key!r} is no regular expression" for key in pattern if not _compiles(key)]
    fields = UNUSED | READ | {"use_dora"}
    faults += [
        f"{name}: {value!r} is not implemented" for name, value in config.items() if value and name not in fields
    ]
    return faults


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True
