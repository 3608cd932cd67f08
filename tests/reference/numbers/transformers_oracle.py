"""Hugging Face transformers on a checkpoint directory: float32, eager attention, one sequence at a time."""

import contextlib
import dataclasses
import json
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import transformers
from comparison import Greedy
from transformers.modeling_layers import MtpModel

from hybridlm.bench.transformers_side import cache_argument


@dataclasses.dataclass
class Oracle:
    """A model that transformers read from `directory`."""

    directory: pathlib.Path
    model: Any

    @classmethod
    def load(cls, directory: pathlib.Path, as_it_is: bool = False) -> "Oracle":
        """Read the directory with transformers; missing and unexpected tensors are errors.

        `as_it_is` leaves the floor that its Nemotron-H and Zamba2 put under the time steps of a prompt. Neither the
        published code nor its own decoding step has this floor.
        """
        outer = json.loads((directory / "config.json").read_text())
        auto: Any = (
            transformers.AutoModelForImageTextToText if "text_config" in outer else transformers.AutoModelForCausalLM
        )
        model, info = auto.from_pretrained(
            directory,
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
            output_loading_info=True,
        )
        faults = {kind: names for kind, names in info.items() if names}
        if faults:
            raise ValueError(f"transformers did not read {directory} cleanly: {faults}")
        model.eval()
        for module in model.modules():
            if hasattr(module, "time_step_limit") and not as_it_is:
                module.time_step_limit = tuple(getattr(model.config, "time_step_limit", (0.0, math.inf)))
        for end in ("eos_token_id", "pad_token_id", "bos_token_id"):
            setattr(model.generation_config, end, None)
        return cls(directory, model)

    @property
    def text_model(self) -> Any:
        """The text tower, with `embed_tokens`, `layers` and `norm`."""
        inner = self.model.base_model
        return getattr(inner, "language_model", inner)

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """float32[T, V], computed without a cache."""
        with torch.no_grad():
            return self.model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0].numpy()

    def mtp_head(self) -> Any:
        """The MTP head: transformers has its code but does not use it here.

        It makes the head's norms like the first one of the last layer, which must therefore attend, as it does in
        every published model: the first norm of a delta net is another kind.
        """
        text, layers = self.text_model, self.text_model.layers
        text.config.num_mtp_layers, text.config.mtp_layer_types = 1, ["full_attention"]
        attending = next(layer for layer in layers if hasattr(layer, "self_attn"))
        text.layers = torch.nn.ModuleList([*layers, attending])
        try:
            return MtpModel.from_pretrained(self.model).eval()
        finally:
            text.layers = layers

    def mtp_logits(self, tokens: Sequence[int]) -> np.ndarray:
        """float32[T-1, V]: the MTP head's logits for each token but the first."""
        head = self.mtp_head()
        ids = torch.tensor([list(tokens)])
        positions = torch.arange(1, len(tokens))[None]
        with torch.no_grad():
            # of a model, the last of these is the one after its final norm
            hidden = self.text_model(input_ids=ids, use_cache=False).last_hidden_state
            output = head.forward_layer(0, hidden[:, :-1], positions, None, input_ids=ids[:, 1:])
            return self.model.lm_head(output)[0].numpy()

    def states(self, tokens: Sequence[int], layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Content of the cache of a delta-net layer after the tokens.

        The convolution's last K inputs [K, C] (one more than it needs) and the recurrent state [Hv, dk, dv].
        """
        cache = transformers.DynamicCache(config=self.text_model.config)
        settings = {cache_argument(self.model): cache}
        with torch.no_grad():
            self.model(input_ids=torch.tensor([list(tokens)]), use_cache=True, **settings)
        saved: Any = cache.layers[layer]
        return saved.conv_states[0][0].numpy().T, saved.recurrent_states[0][0].numpy()

    def greedy(self, tokens: Sequence[int], count: int) -> Greedy:
        """Continue a prompt by `count` tokens with transformers' generation and cache."""
        ids = torch.tensor([list(tokens)])
        with torch.no_grad():
            result = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=count,
                output_logits=True,
                return_dict_in_generate=True,
            )
        best = torch.stack(result.logits)[:, 0].topk(2, dim=-1).values.numpy()
        return Greedy(result.sequences[0, len(tokens) :].numpy(), best[:, 0] - best[:, 1])

    def noise(self, tokens: Sequence[int], repeats: int = 3) -> float:
        """Largest logit change under float32 rounding of embeddings: the oracle's noise."""
        reference, generator = self.logits(tokens), torch.Generator().manual_seed(0)

        def perturb(module: Any, arguments: Any, output: torch.Tensor) -> torch.Tensor:
            return output * (1 + 1.2e-7 * torch.randn(output.shape, generator=generator))

        handle = self.model.get_input_embeddings().register_forward_hook(perturb)
        try:
            return max(float(np.abs(self.logits(tokens) - reference).max()) for _ in range(repeats))
        finally:
            handle.remove()

    @contextlib.contextmanager
    def record(self) -> Iterator[dict[str, np.ndarray]]:
        """Collects `<layer>.input`, `<layer>.mixer_input` and `<layer>.mixer_output`, float32[T, H], of a forward."""
        records: dict[str, np.ndarray] = {}
        handles = []
        for index, layer in enumerate(self.text_model.layers):
            mixer = layer.linear_attn if hasattr(layer, "linear_attn") else layer.self_attn

            def keep(module: Any, args: Any, kwargs: Any, output: Any, index: int = index) -> None:
                records[f"{index}.mixer_input"] = kwargs["hidden_states"][0].detach().numpy()
                records[f"{index}.mixer_output"] = (
                    (output[0] if isinstance(output, tuple) else output)[0].detach().numpy()
                )

            handles.append(mixer.register_forward_hook(keep, with_kwargs=True))
        try:
            yield records
        finally:
            for handle in handles:
                handle.remove()
