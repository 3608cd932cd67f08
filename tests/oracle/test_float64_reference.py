"""The float64 reference against transformers' layers, so that it replaces them without torch."""

import numpy as np
import pytest
from comparison import QWEN_TOLERANCE
from float64_reference import FAMILIES as FAMILIES
from float64_reference import Float64Model, gated_attention, gated_delta_net

pytestmark = pytest.mark.oracle


def test_mixers(case):
    """Delta-net and attention layers on their inputs in transformers."""
    reference = Float64Model(case.directory)
    with case.oracle.record() as error:
        case.oracle.logits(case.prompts[-1])
    kinds = set()
    for layer in range(reference.config["num_hidden_layers"]):
        inputs = error[f"{layer}.mixer_input"].astype(np.float64)
        if weights := reference.below(f"model.layers.{layer}.self_attn"):
            actual, tolerance = gated_attention(inputs, weights, reference.config), 2e-5
        else:
            weights = reference.below(f"model.layers.{layer}.linear_attn")
            actual, tolerance = gated_delta_net(inputs, weights, reference.config).hidden, QWEN_TOLERANCE / 4
        kinds.add(tolerance)
        expected = error[f"{layer}.mixer_output"]
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance, err_msg=f"{case.variant.name} {layer}")
    assert len(kinds) == 2, "the case has no layer of one kind"


def test_recurrent_state(case):
    """The state equals transformers' [key, value] cache; its convolution keeps one more input."""
    prompt = case.prompts[-1]
    for layer, expected in Float64Model(case.directory).forward(prompt).delta_nets.items():
        conv, recurrent = case.oracle.states(prompt, layer)
        np.testing.assert_allclose(np.swapaxes(recurrent, -1, -2), expected.recurrent, rtol=0, atol=1e-4)
        np.testing.assert_allclose(conv[1:], expected.conv, rtol=0, atol=1e-4)


def test_logits(case):
    """The whole model, logits of every position."""
    reference = Float64Model(case.directory)
    for prompt, expected in zip(case.prompts, case.logits, strict=True):
        np.testing.assert_allclose(reference.forward(prompt).logits, expected, rtol=0, atol=QWEN_TOLERANCE)
