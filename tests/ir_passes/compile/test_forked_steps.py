"""A forked process raises an error where JAX would wait forever."""

import os
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from forked import outcomes

from ir_passes import Lane, LaneContract, Pool, Shared, compile_step, isolated

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
CONTRACT = LaneContract((Shared(), Pool("s"), Lane()), (Lane(), Pool("s")))


def step(weight: Any, pool: Any, inputs: Any) -> tuple[Any, Any]:
    new = pool * 0.5 + inputs @ weight
    return new.sum(1), new


def test_steps_are_refused(tmp_path: Path) -> None:
    args = jnp.ones((4, 4)), jnp.ones((3, 4)), jnp.ones((3, 4))
    compiled, decorated = compile_step(step, args, CONTRACT), isolated(CONTRACT)(step)
    decorated(*args[:1], jnp.ones((3, 4)), args[2])
    calls = {
        "first call": lambda: compiled(*args),
        "decorated": lambda: decorated(*args),
        "new shape": lambda: isolated(CONTRACT)(step)(*args),
        "compile": lambda: compile_step(step, args, CONTRACT),
    }
    assert outcomes(calls) == dict.fromkeys(calls, "ForkedProcessError")
    assert compiled(*args)[0].shape == (3,)
