"""Arrays of rows: zeros where their types say."""

import jax
import numpy as np

import hybridlm
from hybridlm import EngineConfig
from hybridlm.rows.arrays import maker_of_zeros, zeros


def test_zeros_lie_where_their_types_say() -> None:
    over = EngineConfig(mesh=hybridlm.mesh(data=2, model=2)).place().over(None, "model")
    types = (jax.ShapeDtypeStruct((1, 4), np.float32, sharding=over),) * 2
    assert all(item.sharding == over and not item.any() for r in (maker_of_zeros(types)(), zeros(types)) for item in r)
