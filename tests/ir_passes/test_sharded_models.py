"""Steps of every family over meshes: proved, and exchanges follow the program."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from random_checkpoint import FAMILIES
from zoo.meshes.sharded_models import sharded_model

from hybridlm.compiler import planned as plans  # declares the row-wise operations of the models, too
from ir_passes import compile_step
from ir_passes.jaxpr import ir

VARIANTS = FAMILIES | {"nemotron_dense": FAMILIES["nemotron_latent"], "lfm2_base": {}, "olmo_grouped": {}}


@pytest.mark.long
@pytest.mark.parametrize("name", VARIANTS)
def test_steps_are_proved_on_every_mesh(name: str) -> None:
    for axes in ((2, 2, 2), (1, 4, 1), (4, 1, 1)):
        for tokens in (1, 9):
            program = sharded_model(name, axes, tokens, **VARIANTS[name])
            planned = plans.plan_step(program.step, program.args(), program.contract)
            over = {axis for collective in planned.collectives for axis in collective.axes}
            assert "data" not in over
            assert ("model" in over) is (axes[1] > 1), program.name


@pytest.mark.long
@pytest.mark.parametrize("name", VARIANTS)
def test_devices_exchange_what_the_step_says(name: str) -> None:
    program = sharded_model(name, (2, 2, 2), 1, **VARIANTS[name])
    args = program.args()
    jaxpr = ir.trace(program.step, *args).jaxpr
    (eqn,) = (eqn for eqn in jaxpr.eqns if eqn.primitive.name == "shard_map")
    specs = dict(zip(eqn.invars, eqn.params["in_specs"], strict=True))
    leaves, tree = jax.tree.flatten(args)
    types = [
        jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype, sharding=NamedSharding(eqn.params["mesh"], specs[var]))
        for leaf, var in zip(leaves, jaxpr.invars, strict=True)
    ]
    step = compile_step(program.step, jax.tree.unflatten(tree, types), program.contract, may_copy=("*",))
    planned = plans.plan_step(program.step, args, program.contract)
    assert step.certificate.holds
    assert sorted(map(str, step.certificate.collectives)) == sorted(map(str, planned.collectives))
