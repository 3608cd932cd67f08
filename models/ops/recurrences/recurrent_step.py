"""Choice between a linear recurrence's kernel and plain form."""

from functools import partial
from typing import Any

import jax
from jax import Array
from jaxtyping import Float32

from models.ops.recurrences.recurrence import (
    RecurrenceForm,
    RecurrenceInputs,
    RecurrenceOutputs,
    Surroundings,
)
from models.ops.recurrences.recurrent_step_cpu import KERNEL as CPU_KERNEL
from models.ops.recurrences.recurrent_step_cpu import recurrent_step_cpu
from models.ops.recurrences.recurrent_step_gpu import KERNEL as GPU_KERNEL
from models.ops.recurrences.recurrent_step_gpu import recurrent_step
from models.ops.recurrences.recurrent_step_tpu import KERNEL as TPU_KERNEL
from models.ops.recurrences.recurrent_step_tpu import recurrent_step_tpu


def _for_gpus(inputs: RecurrenceInputs) -> bool:
    return inputs.devices.platform != "tpu" and GPU_KERNEL.chosen(inputs.devices, inputs)


def with_surroundings(
    inputs: RecurrenceInputs, surroundings: Surroundings, keep_state: bool
) -> RecurrenceOutputs | None:
    """Run a few tokens and their surroundings by one kernel, or return None."""
    if not _for_gpus(inputs):
        return None
    return recurrent_step(inputs, surroundings, keep_state=keep_state, interpret=inputs.devices.interpret)


def with_channels(
    inputs: RecurrenceInputs, channels: Float32[Array, "lane token channel"], key_heads: int, keep_state: bool
) -> RecurrenceOutputs | None:
    """Run tokens of the delta rule on convolution outputs by one kernel, or return None.

    Args:
        inputs: operands of the step; the kernel recomputes queries, keys and values.
        channels: queries, keys and values, without norm.
        key_heads: number, of queries and of keys.
    """
    values, keys = inputs.state.shape[2:]
    if not _for_gpus(inputs) or 2 * key_heads * keys % values:
        return None
    devices = inputs.devices
    return recurrent_step(inputs, None, channels, key_heads, keep_state=keep_state, interpret=devices.interpret)


def by_kernel(plain: RecurrenceForm, inputs: RecurrenceInputs, keep_state: bool = False) -> RecurrenceOutputs:
    """Run the tokens of every lane by the platform's kernel, or by the plain form.

    Args:
        plain: form of the same numbers; it gives a CPU kernel its derivatives.
    """
    devices = inputs.devices
    if CPU_KERNEL.chosen(devices, inputs, keep_state):
        arrays, tree = jax.tree.flatten(inputs)
        return _on_cpu(plain, keep_state, tree, *arrays)
    if devices.platform == "tpu" and TPU_KERNEL.chosen(devices, inputs):
        return recurrent_step_tpu(inputs, interpret=devices.interpret)
    if _for_gpus(inputs):
        return recurrent_step(inputs, keep_state=keep_state, interpret=devices.interpret)
    return plain(inputs)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _on_cpu(plain: RecurrenceForm, keep_state: bool, tree: Any, *arrays: Any) -> RecurrenceOutputs:
    return recurrent_step_cpu(jax.tree.unflatten(tree, arrays), keep_state=keep_state)


@_on_cpu.defjvp
def _derivative(plain: RecurrenceForm, keep_state: bool, tree: Any, arrays: Any, tangents: Any) -> Any:
    output, state = jax.jvp(lambda *arrays: plain(jax.tree.unflatten(tree, arrays)), arrays, tangents)[1]
    return _on_cpu(plain, keep_state, tree, *arrays), RecurrenceOutputs(output, None if keep_state else state)
