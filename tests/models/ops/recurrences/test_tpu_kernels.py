"""XLA's TPU programs of operations with kernels: in place, without copies."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hybridlm.families import RecurrenceInputs
from ir_passes.targets import named_targets, read_target
from models import Devices
from models.ops.recurrences.delta_rule import delta_rule_step
from models.ops.recurrences.recurrent_step_tpu import KERNEL, MAX_BLOCK, MAX_HEADS, heads_of_block
from models.ops.recurrences.ssd import ssd_step

pytestmark = pytest.mark.target_tpu
LANES, ROWS, KEYS = 16, 20, 128
TPU = Devices(platform="tpu", kernels="auto")
FORMS: dict[str, tuple[Callable[..., Any], int, int, int]] = {
    "head": (delta_rule_step, 8, 8, 128),
    "channel": (delta_rule_step, 6, 6, 128),
    "ssd in groups": (ssd_step, 24, 2, 64),
    "several blocks of heads": (ssd_step, 40, 1, 64),
}
LARGEST: dict[str, tuple[Callable[..., Any], int, int, int]] = {
    "largest block": (delta_rule_step, 64, 64, 128),
    "largest block by channel": (delta_rule_step, 32, 32, 128),
    "most heads": (ssd_step, 32, 1, 16),
}


def program(form: str, keys: int = KEYS, slots: bool = False, target: str = "tpu-v5e") -> tuple[str, tuple[int, ...]]:
    """Return the scheduled program of a step for a TPU, and its states' shape."""
    step, heads, key_heads, values = (FORMS | LARGEST)[form]
    place = jax.sharding.SingleDeviceSharding(read_target(target).devices[0])
    array = lambda *shape, dtype=jnp.float32: jax.ShapeDtypeStruct(shape, dtype, sharding=place)

    def run(state: Any, key: Any, value: Any, decay: Any, beta: Any, valid: Any, slots: Any) -> Any:
        inputs = RecurrenceInputs(key, key, value, decay, state, valid, valid[:, 0], beta, TPU, slots)
        return tuple(step(inputs))

    shape = ROWS if slots else LANES, heads, values, keys
    beta = None if step is ssd_step else array(LANES, 1, heads)
    decay = array(LANES, 1, heads, keys) if form.endswith("channel") else array(LANES, 1, heads)
    key, value = array(LANES, 1, key_heads, keys), array(LANES, 1, heads, values)
    mask, rows = array(LANES, 1, dtype=jnp.bool_), array(LANES, dtype=jnp.int32) if slots else None
    lowered = jax.jit(run, donate_argnums=0).lower(array(*shape), key, value, decay, beta, mask, rows)
    return lowered.compile().as_text() or "", shape


@pytest.mark.parametrize("slots", [False, True], ids=["rows by lane", "rows by slot"])
@pytest.mark.parametrize("form", FORMS)
def test_kernel_compiles_in_place(form: str, slots: bool) -> None:
    text, shape = program(form, slots=slots)
    sizes = ",".join(map(str, shape))
    built = [line for line in text.splitlines() if re.search(rf"= f32\[{sizes}\]\S* (?!parameter)", line)]
    assert KERNEL.name in text
    assert len(built) == 1 and "get-tuple-element" in built[0], "the states stand nowhere but in the kernel's result"
    assert re.search(r"input_output_alias=\{[^}]*\{1\}: \(0,", text), "which takes the memory of the argument"


@pytest.mark.parametrize("target", [name for name in named_targets() if name.startswith("tpu")])
@pytest.mark.parametrize("keys", [128, 256])
@pytest.mark.parametrize("form", LARGEST)
def test_the_largest_blocks_fit_each_tpu(form: str, keys: int, target: str) -> None:
    """States of 2 MiB or 32 heads of an instance: libtpu refuses more than its memory."""
    _, heads, _, values = LARGEST[form]
    block = heads_of_block(heads, values, keys)
    assert block is not None and (block == MAX_HEADS or 4 * block * values * keys == MAX_BLOCK)
    assert KERNEL.name in program(form, keys, target=target)[0]


def test_sizes_that_are_padded_are_left_to_the_plain_form() -> None:
    text, _ = program("head", keys=64)
    assert 'custom_call_target="tpu_custom_call"' not in text
