"""States of `LM.forward` and parameters over a mesh: in one order everywhere, or refused."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparison import TOLERANCES
from random_checkpoint import write_random_checkpoint

import hybridlm

SETTINGS: dict[str, Any] = {"lanes": 2, "context": 128, "dtype": "float32", "chunk": 5}
TOKENS = np.random.default_rng(0).integers(64, size=(2, 6))


Models = tuple[hybridlm.LM, hybridlm.LM]
"""A model on one device, and over two along `model`."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A convolution over [q | k | v] is split by segments; two devices hold the only key/value head."""
    fields: dict[str, Any] = {"num_hidden_layers": 2, "full_attention_interval": 2, "num_key_value_heads": 1}
    directory = write_random_checkpoint("dense_base", tmp_path_factory.mktemp("mesh"), **fields)
    single, over = (
        hybridlm.load(directory, certify="off", mesh=mesh, **SETTINGS) for mesh in (None, hybridlm.mesh(model=2))
    )
    return single, over


def tolerance_of(lm: hybridlm.LM) -> float:
    return TOLERANCES[lm.config.family.removesuffix("_text")]


@pytest.mark.slow
def test_a_state_goes_on_over_other_devices(models: Models) -> None:
    single, over = models
    actual, expected = (lm.forward(TOKENS, return_states=True) for lm in (over, single))
    assert actual.states is not None and expected.states is not None
    check = partial(np.testing.assert_allclose, rtol=0, atol=tolerance_of(single))
    jax.tree.map(check, actual.states, expected.states)
    logits = single.forward(TOKENS, state=expected.states).logits
    for lm, state in ((over, actual.states), (over, expected.states), (single, jax.device_get(actual.states))):
        check(lm.forward(TOKENS, state=state).logits, logits)


@pytest.mark.slow
def test_parameters_of_other_devices_are_refused(models: Models) -> None:
    """Their entries have the same shapes in another order."""
    single, over = models
    copies = {name: jnp.copy(array) for name, array in over.params.items()}
    moved = {name: jnp.asarray(np.asarray(array)) for name, array in over.params.items()}
    np.testing.assert_array_equal(over.forward(TOKENS, params=copies).logits, over.forward(TOKENS).logits)
    for function in (over.forward, over.logits):
        with pytest.raises(ValueError, match=r"params: expected arrays split .*lm\.update takes whole arrays"):
            function(TOKENS, params=moved)
    name = next(name for name in over.params if "conv" in name)
    assert over.params[name].shape == single.params[name].shape
    with pytest.raises(ValueError, match=f"got others for {name};"):
        over.forward(TOKENS, params=over.params | {name: single.params[name]})
