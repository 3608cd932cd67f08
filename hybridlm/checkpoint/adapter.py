"""LoRA adapters as PEFT saves them: read from a directory, matched with a family's tensors, merged into parameters.

adapter_config.json          rank, alpha and what was adapted
adapter_model.safetensors    two factors per adapted matrix, and tensors that were trained as a whole
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hybridlm.checkpoint.safetensors import READABLE, SafetensorsFile, unreadable
from hybridlm.errors import CheckpointError
from hybridlm.files.strict_json import MEGABYTE, read_object
from models import Family, Weight
from models.weights.sources import ArraySlice, WeightSource

CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
MAX_CONFIG_BYTES = 16 * MEGABYTE
# Fields without effect on a trained adapter. Any other that is neither read nor empty is refused: PEFT's fields are
# null, false or empty where a variant is not used.
UNUSED = frozenset(
    """auto_mapping base_model_name_or_path revision inference_mode task_type peft_version target_modules
    target_parameters exclude_modules layers_to_transform layers_pattern lora_dropout bias modules_to_save
    fan_in_fan_out megatron_core loftq_config eva_config corda_config lora_ga_config runtime_config
    qalora_group_size""".split()
)
READ = frozenset("peft_type r lora_alpha use_rslora rank_pattern alpha_pattern init_lora_weights".split())
# Initial values that leave the base weights as they are; the others change them before training.
INITIAL = (True, False, None, "gaussian", "eva", "orthogonal")
EXPERT_PARTS = ("gate_up_proj", "up_proj", "down_proj")
"""Parameters of all experts of a layer in the modules of transformers."""
MERGE_ELSEWHERE = (
    "Merge it with PEFT and save the result: "
    "PeftModel.from_pretrained(base, adapter).merge_and_unload().save_pretrained(directory)."
)
_KEY = re.compile(r"(?P<module>.+?)\.lora_(?P<embedding>embedding_)?(?P<factor>[AB])(?:\.default)?(?:\.weight)?")
_VARIANTS = {
    "lora_magnitude_vector": "DoRA",
    "trainable_tokens_delta": "trainable tokens",
    "token_adapter": "trainable tokens",
    "lora_bias": "lora_bias",
}


class Factors(NamedTuple):
    """The low-rank factors of one adapted tensor.

    Attributes:
        down, up: names of the tensors A and B in the file.
        scale: factor on their product.
        embedding: the product is transposed.
        experts: number of matrices in one tensor; None for a single matrix.
    """

    down: str
    up: str
    scale: float
    embedding: bool
    experts: int | None = None


@dataclass(frozen=True)
class Adapter:
    """An opened adapter. Its headers have been checked; no tensor has been read.

    Attributes:
        path: the directory.
        config: adapter_config.json.
        file: its tensors.
        digest: SHA-256 of both files.
    """

    path: Path
    config: Mapping[str, Any]
    file: SafetensorsFile
    digest: str

    def array(self, name: str) -> np.ndarray:
        """Return a tensor in float32."""
        return np.asarray(self.file.read(name)).astype(np.float32)


@dataclass(frozen=True)
class BoundAdapter:
    """An adapter whose tensors are matched with those of a model.

    Attributes:
        adapter: its files.
        factors: canonical tensor name -> the low-rank change of that tensor.
        replaced: canonical tensor name -> name in the file of the tensor that takes its place.
        skipped: names in the file of what belongs to parts that are not read (vision towers).
    """

    adapter: Adapter
    factors: Mapping[str, Factors]
    replaced: Mapping[str, str]
    skipped: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """A sentence for the user on what is merged."""
        whole = f", {len(self.replaced)} tensors replaced" if self.replaced else ""
        unused = f", {len(self.skipped)} tensors of parts that are not read left out" if self.skipped else ""
        return f"{self.adapter.path}: LoRA adapter merged into {len(self.factors)} tensors{whole}{unused}"

    def touches(self, weight: Weight) -> bool:
        """Whether the adapter changes a parameter."""
        return any(name in self.factors or name in self.replaced for source in weight.options for name in source.shapes)

    def merge(self, weight: Weight, windows: Sequence[tuple[ArraySlice, ArraySlice]], result: np.ndarray) -> None:
        """Apply the adapter to a float32 array of pieces of a parameter.

        Args:
            weight: the parameter.
            windows: for each piece its place in the parameter and its place in the result.
            result: the pieces; changed in place.
        """
        for name, source in _sources(weight):
            if name in self.replaced:
                _place(weight, source, name, self.adapter.array(self.replaced[name]), windows, result, add=False)
            if name in self.factors:
                product = self._product(self.factors[name])
                _place(weight, source, name, product.reshape(source.shapes[name]), windows, result, add=True)

    def _product(self, f: Factors) -> np.ndarray:
        down, up = self.adapter.array(f.down), self.adapter.array(f.up)
        if f.embedding:
            return (up @ down).T * np.float32(f.scale)
        if f.experts is None:
            return (up @ down) * np.float32(f.scale)
        down = down.reshape(f.experts, -1, down.shape[1])
        up = np.moveaxis(up.reshape(up.shape[0], -1, f.experts), 2, 0)
        return np.matmul(up, down) * np.float32(f.scale)


def _sources(weight: Weight) -> Iterator[tuple[str, WeightSource]]:
    """Yield every tensor that a parameter can come from, each with the first source that has it."""
    seen: set[str] = set()
    for source in weight.options:
        for name in source.shapes:
            if name not in seen:
                seen.add(name)
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
        whole = result[(*target, ...)]
        for piece in source.pieces(window, weight.shape):
            if piece.name == name:
                place, found = whole[(*piece.place, ...)], source.take(tensor, piece.taken)
                place[...] = place + found if add else found


def has_adapter(directory: Path) -> bool:
    """Whether an adapter lies in a directory."""
    return (directory / CONFIG).is_file()


def base_of(directory: Path) -> str:
    """Return the base model that adapter_config.json names: a directory or a hub id.

    Raises:
        CheckpointError: it names none.
    """
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
        CheckpointError: no adapter, a pickle, another method than LoRA, or a variant of LoRA that cannot be merged;
            every fault is named.
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
    return Adapter(directory, config, SafetensorsFile(directory / WEIGHTS), digest.hexdigest())


def _config_faults(config: Mapping[str, Any]) -> list[str]:
    faults = []
    if config.get("peft_type") != "LORA":
        return [f"peft_type: expected 'LORA', found {config.get('peft_type')!r}"]
    if config.get("use_dora"):
        faults.append("use_dora: DoRA is not implemented, only plain LoRA and rsLoRA")
    initial = config.get("init_lora_weights", True)
    if not any(initial is one or (isinstance(one, str) and initial == one) for one in INITIAL):
        faults.append(f"init_lora_weights: {initial!r} changes the base weights, which are not those of the checkpoint")
    for name in ("r", "lora_alpha"):
        if not _positive(config.get(name, 8)):
            faults.append(f"{name}: expected a number greater than 0, found {config[name]!r}")
    for name in ("rank_pattern", "alpha_pattern"):
        pattern = config.get(name) or {}
        if not isinstance(pattern, dict) or not all(map(_positive, pattern.values())):
            faults.append(f"{name}: expected an object of numbers greater than 0, found {pattern!r}")
        else:
            faults += [f"{name}: {key!r} is no regular expression" for key in pattern if not _compiles(key)]
    known = UNUSED | READ | {"use_dora"}
    faults += [f"{name}: {value!r} is not implemented" for name, value in config.items() if value and name not in known]
    return faults


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def bind(adapter: Adapter, family: Family, weights: Sequence[Weight], tied: bool) -> BoundAdapter:
    """Match the tensors of an adapter with those of a model.

    Args:
        adapter: an opened adapter.
        family, weights: of the model.
        tied: the head of the model is its embedding.

    Raises:
        CheckpointError: every tensor that belongs to nothing, has another shape, or cannot be merged.
    """
    return _Binding(adapter, family, weights, tied).bound()


class _Binding:
    """One match of an adapter with a model, which collects faults."""

    def __init__(self, adapter: Adapter, family: Family, weights: Sequence[Weight], tied: bool):
        self._adapter, self._family, self._tied = adapter, family, tied
        self._shapes: dict[str, tuple[int, ...]] = {}
        for weight in weights:
            for name, source in _sources(weight):
                self._shapes.setdefault(name, tuple(source.shapes[name]))
        self._embedding = {
            name for weight in weights if weight.path == ("embed_tokens",) for name, _ in _sources(weight)
        }
        self._faults: list[str] = []
        self._skipped: list[str] = []

    def bound(self) -> BoundAdapter:
        pairs: dict[tuple[str, bool], dict[str, str]] = {}
        replaced: dict[str, str] = {}
        for key, info in self._adapter.file.tensors.items():
            name = key.removeprefix("base_model.model.")
            variant = next((variant for part, variant in _VARIANTS.items() if part in name), None)
            match = _KEY.fullmatch(name)
            if info.dtype not in READABLE:
                self._faults.append(f"{key}: {unreadable(info.dtype)}")
            elif variant is not None or (".lora_" in name and match is None):
                self._faults.append(f"{key}: {variant or 'this kind of tensor'} is not implemented")
            elif match is not None:
                pairs.setdefault((match["module"], bool(match["embedding"])), {})[match["factor"]] = key
            else:
                self._replace(key, name, info.shape, replaced)
        factors: dict[str, Factors] = {}
        for (module, embedding), keys in pairs.items():
            self._factors(module, embedding, keys, factors)
        self._check_tied(factors, replaced)
        if not self._faults and not factors and not replaced:
            self._faults.append("changes nothing of this model")
        if self._faults:
            raise CheckpointError(
                self._adapter.path, self._faults, f"(Matched with the tensors of family {self._family.name}.)"
            )
        return BoundAdapter(self._adapter, factors, replaced, tuple(self._skipped))

    def _replace(self, key: str, name: str, shape: tuple[int, ...], replaced: dict[str, str]) -> None:
        plain = re.sub(r"\.(modules_to_save(\.default)?|base_layer)\.", ".", name)
        known = [one for one in self._family.tensor_names(plain) if one in self._shapes]
        if not known and self._tied and plain == "lm_head.weight":
            replaced[plain] = key
        elif not known:
            self._unknown(key, plain)
        elif shape != self._shapes[known[0]]:
            self._faults.append(f"mis-shaped {key}: expected {self._shapes[known[0]]}, found {shape}")
        else:
            replaced[known[0]] = key

    def _unknown(self, key: str, name: str) -> None:
        if any(self._family.skips(one) for one in (name, *self._family.tensor_names(name))):
            self._skipped.append(key)
        else:
            self._faults.append(
                f"{key}: no tensor of the model is named {' or '.join(self._family.tensor_names(name))}"
            )

    def _factors(self, module: str, embedding: bool, keys: Mapping[str, str], factors: dict[str, Factors]) -> None:
        if keys.keys() != {"A", "B"}:
            self._faults.append(f"{module}: expected lora_A and lora_B, found {', '.join(sorted(keys.values()))}")
            return
        down, up = (self._adapter.file.tensors[keys[factor]].shape for factor in "AB")
        if len(down) != 2 or len(up) != 2:
            self._faults.append(f"{module}: factors {down} and {up} of a convolution are not implemented")
            return
        rows, columns = (down[1], up[0]) if embedding else (up[0], down[1])
        plain = module.replace(".base_layer", "")
        candidates = self._family.tensor_names(f"{plain}.weight")
        matrices = [name for name in candidates if name in self._shapes and len(self._shapes[name]) == 2]
        stacks = [
            name
            for name in self._experts(plain, candidates)
            if self._shapes[name][1:] == (rows, columns) and name not in factors
        ]
        if matrices:
            name, experts = matrices[0], None
        elif len(stacks) == 1:
            name, experts = stacks[0], self._shapes[stacks[0]][0]
        elif stacks:
            self._faults.append(f"{module}: could change {' or '.join(stacks)}, which have the same shape")
            return
        else:
            self._unknown(f"{module} (lora_A {down}, lora_B {up})", f"{plain}.weight")
            return
        if name in factors:
            self._faults.append(f"{module}: changes {name}, which {factors[name].down} changes, too")
            return
        rank = self._setting("r", "rank_pattern", plain, name)
        if (rows, columns) != self._shapes[name][-2:] or down[0] != up[1] or down[0] != rank * (experts or 1):
            self._faults.append(
                f"{module}: expected factors of rank {rank} that make {self._shapes[name]}, found {down} and {up}"
            )
            return
        divisor = math.sqrt(rank) if self._adapter.config.get("use_rslora") else rank
        scale = self._setting("lora_alpha", "alpha_pattern", plain, name) / divisor
        factors[name] = Factors(keys["A"], keys["B"], scale, embedding, experts)

    def _experts(self, module: str, candidates: Iterable[str]) -> list[str]:
        """Return the tensors of several matrices that a module holds under a name or as one of its parameters."""
        stems = {name.removesuffix(".weight") for name in candidates} | {module}
        return [
            name
            for name, shape in self._shapes.items()
            if len(shape) == 3 and (name in candidates or any(name.startswith(f"{stem}.") for stem in stems))
        ]

    def _setting(self, field: str, patterns: str, module: str, name: str) -> float:
        """Return rank or alpha: that of the first pattern that the module's name ends with, or the common one."""
        parts = (f"{module}.{part}" for part in EXPERT_PARTS)
        names = [module, *(one for one in parts if name in self._family.tensor_names(one))]
        for pattern, value in (self._adapter.config.get(patterns) or {}).items():
            if any(re.match(rf"(.*\.)?({pattern})$", one) for one in names):
                return value
        return self._adapter.config.get(field, 8)

    def _check_tied(self, factors: Mapping[str, Factors], replaced: dict[str, str]) -> None:
        """Refuse a change of the embedding alone, or of the head alone, where both are one tensor."""
        if not self._tied:
            return
        head = replaced.pop("lm_head.weight", None)
        embedding = next((replaced[name] for name in self._embedding if name in replaced), None)
        low_rank = sorted(self._embedding & factors.keys())
        array = self._adapter.array
        same = head is not None and embedding is not None and np.array_equal(array(head), array(embedding))
        if low_rank or ((head is not None or embedding is not None) and not same):
            changed = [*low_rank, *(one for one in (embedding, head) if one is not None)]
            self._faults.append(
                f"{', '.join(changed)}: the head of this model is its embedding (tie_word_embeddings), and the "
                "adapter makes them differ; save a merged model with tie_word_embeddings false"
            )
