"""Interventions against transformers' hooks: an added vector, and a zeroed head."""

from typing import Any

import numpy as np
import pytest

from hybridlm import Intervention

pytestmark = pytest.mark.oracle


def test_interventions_are_forward_hooks(case, lm):
    import torch
    from comparison import log_probabilities

    layers, sites = case.oracle.text_model.layers, lm.model.sites()
    prompts = [prompt for prompt in case.prompts if len(prompt) > 16][:2]
    rng = np.random.default_rng(case.seed)
    vector = rng.normal(size=lm.config.residual_size).astype(np.float32)
    middle = len(layers) // 2

    def add(module: Any, settings: Any, output: Any) -> Any:
        hidden = (output[0] if isinstance(output, tuple) else output).clone()
        hidden[:, 3:9] += torch.from_numpy(vector)
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    changes: list[Any] = [
        (
            layers[middle].register_forward_hook,
            add,
            Intervention.add(vector, hidden_state=middle + 1, positions=range(3, 9)),
        )
    ]
    for layer, mapping in enumerate(sites):
        heads = {kind: count for kind, count in mapping.items() if kind != "expert"}
        projections = {
            name.rpartition(".")[2]: module
            for name, module in layers[layer].named_modules()
            if name.endswith(("o_proj", "out_proj"))
        }
        if len(projections) != len(heads):
            continue
        for kind, count in heads.items():
            # In layers of both kinds attention's is `o_proj`, and the recurrence's `out_proj`.
            of_two = "o_proj" if kind == "attention" else "out_proj"
            projection = projections[of_two if len(heads) == 2 else next(iter(projections))]

            def zero(module: Any, settings: Any, size: int = projection.in_features // count) -> Any:
                x = settings[0].clone()
                x[..., size : 2 * size] = 0
                return (x, *settings[1:])

            ablation = Intervention.ablate_head(layer, 1, mixer=kind if len(heads) == 2 else None)
            changes.append((projection.register_forward_pre_hook, zero, ablation))
        if "recurrent" in heads:
            break
    assert len(changes) > 1 or not any("recurrent" in site for site in sites), "a head is ablated"
    for register, hook, intervention in changes:
        handle = register(hook)
        try:
            expected = [log_probabilities(case.oracle.logits(prompt), prompt) for prompt in prompts]
        finally:
            handle.remove()
        for prompt, wanted, score in zip(
            prompts, expected, lm.score(prompts, interventions=[intervention]), strict=True
        ):
            np.testing.assert_allclose(score.logprobs[1:], wanted[1:], atol=max(case.tolerance, 2e-3), rtol=0)
            plain = case.logprobs[case.prompts.index(prompt)]
            assert np.abs(wanted - plain)[1:].max() > 1e-2, "the hook is seen"
