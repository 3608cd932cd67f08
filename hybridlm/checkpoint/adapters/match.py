"""Match of the tensors of a LoRA adapter with the tensors of a model."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np

from hybridlm.checkpoint.adapters.adapter import Adapter, BoundAdapter, Factors, tensors_of
from hybridlm.checkpoint.safetensors import READABLE, unreadable
from hybridlm.errors import CheckpointError
from models import Family, Weight

_KEY = re.compile(r"(?P<module>.+?)\.lora_(?P<embedding>embedding_)?(?P<factor>[AB])(?:\.default)?(?:\.weight)?")
_VARIANTS = {
    "lora_magnitude_vector": "DoRA",
    "trainable_tokens_delta": "trainable tokens",
    "token_adapter": "trainable tokens",
    "lora_bias": "lora_bias",
}
EXPERT_PARTS = ("gate_up_proj", "up_proj", "down_proj")
"""Expert parameters of a layer, in the modules of transformers."""


def bind(adapter: Adapter, family: Family, weights: Sequence[Weight], tied: bool) -> BoundAdapter:
    """Match the tensors of an adapter with a model.

    Args:
        tied: the head is the embedding.

    Raises:
        CheckpointError: all tensors without a place, of another shape, or of an unmergeable kind.
    """
    return _Binding(adapter, family, weights, tied).bound()


class _Binding:
    def __init__(self, adapter: Adapter, family: Family, weights: Sequence[Weight], tied: bool):
        self._adapter, self._family, self._weights, self._tied = adapter, family, weights, tied
        self._shapes: dict[str, tuple[int, ...]] = {}
        for weight in weights:
            for name, source in tensors_of(weight):
                self._shapes.setdefault(name, tuple(source.shapes[name]))
        self._embedding = {
            name for weight in weights if weight.path == ("embed_tokens",) for name, _ in tensors_of(weight)
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
        self._check_sources(factors.keys() | replaced.keys())
        if not self._faults and not factors and not replaced:
            self._faults.append("changes nothing of this model")
        if self._faults:
            raise CheckpointError(
                self._adapter.path, self._faults, f"(Matched with the tensors of family {self._family.name}.)"
            )
        return BoundAdapter(self._adapter, factors, replaced, tuple(self._skipped))

    def _replace(self, key: str, name: str, shape: tuple[int, ...], replaced: dict[str, str]) -> None:
        plain = re.sub(r"\.(modules_to_save(\.default)?|base_layer)\.", ".", name)
        tensor = next((name for name in self._family.tensor_names(plain) if name in self._shapes), None)
        if tensor is None and self._tied and plain == "lm_head.weight":
            replaced[plain] = key
        elif tensor is None:
            self._unknown(key, plain)
        elif shape != self._shapes[tensor]:
            self._faults.append(f"mis-shaped {key}: expected {self._shapes[tensor]}, found {shape}")
        else:
            replaced[tensor] = key

    def _unknown(self, key: str, name: str) -> None:
        names = self._family.tensor_names(name)
        if any(map(self._family.skips, (name, *names))):
            self._skipped.append(key)
        else:
            self._faults.append(f"{key}: no tensor of the model is named {' or '.join(names)}")

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
        stems = {name.removesuffix(".weight") for name in candidates} | {module}
        return [
            name
            for name, shape in self._shapes.items()
            if len(shape) == 3 and (name in candidates or any(name.startswith(f"{stem}.") for stem in stems))
        ]

    def _setting(self, field: str, patterns: str, module: str, name: str) -> float:
        """Return rank or alpha, by the first pattern that ends the module's name."""
        parts = (f"{module}.{part}" for part in EXPERT_PARTS)
        paths = [module, *(part for part in parts if name in self._family.tensor_names(part))]
        for pattern, value in (self._adapter.config.get(patterns) or {}).items():
            if any(re.match(rf"(.*\.)?({pattern})$", path) for path in paths):
                return value
        return self._adapter.config.get(field, 8)

    def _check_sources(self, changed: Set[str]) -> None:
        """Refuse changes of one parameter in two sources: their entries overlap."""
        for weight in self._weights:
            names = changed & {name for name, _ in tensors_of(weight)}
            if names and not any(names <= source.shapes.keys() for source in (*weight.options, *weight.adapted)):
                self._faults.append(
                    f"{', '.join(sorted(names))}: expected one of them, they are one matrix in two forms, or "
                    f"of a block that layers share"
                )

    def _check_tied(self, factors: Mapping[str, Factors], replaced: dict[str, str]) -> None:
        if not self._tied:
            return
        head = replaced.pop("lm_head.weight", None)
        embedding = next((replaced[name] for name in self._embedding if name in replaced), None)
        low_rank = sorted(self._embedding & factors.keys())
        array = self._adapter.array
        tables = [name for name in (embedding, head) if name is not None]
        equal = len(tables) == 2 and np.array_equal(array(tables[0]), array(tables[1]))
        if low_rank or (tables and not equal):
            changed = [*low_rank, *tables]
            self._faults.append(
                f"{', '.join(changed)}: the head of this model is its embedding (tie_word_embeddings), and the "
                "adapter makes them differ; save a merged model with tie_word_embeddings false"
            )
