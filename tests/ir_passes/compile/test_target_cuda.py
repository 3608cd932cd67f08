"""XLA's compiler for an H100, used without a GPU through the device's entry point.

The packages of extra `target-cuda` are enough; where a CUDA toolkit is installed next to them, XLA may use that.
"""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from audited_steps import LANES, ROW, Step, right_steps
from jax.experimental import topologies

from ir_passes import AuditError, FindingKind, Lane, LaneContract, Pool
from ir_passes.compile.compile_step import compile_step
from ir_passes.compile.compiled_step import CompiledStep

pytestmark = pytest.mark.target_cuda

H100 = """
gpu_device_info {
  name: "NVIDIA H100 80GB HBM3"
  device_vendor: "NVIDIA Corporation"
  platform_version: "Compute Capability 9.0a"
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
  driver_version: "13.0.0"
  runtime_version: "13.0.0"
  compile_time_toolkit_version: "13.0.0"
  dnn_version: "9.10.0"
  device_address_bits: 64
  device_memory_size: 84942979072
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  ecc_enabled: true
  core_count: 132
  fpus_per_core: 128
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  registers_per_block_limit: 65536
  registers_per_core_limit: 65536
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 13 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
PROVED = sorted(set(right_steps()) - {"branches"})
"""The one left out chooses by the first lane's row what all of them compute."""


@pytest.fixture(scope="module")
def place() -> jax.sharding.Sharding:
    topology = topologies.get_topology_desc(platform="cuda", target_config=H100, topology="1x1x1")
    return jax.sharding.SingleDeviceSharding(topology.devices[0])


def placed(args: tuple[Any, ...], place: jax.sharding.Sharding) -> tuple[Any, ...]:
    return jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=place), args)


def compiled(step: Step, place: jax.sharding.Sharding) -> CompiledStep:
    return compile_step(step.fn, placed(step.args, place), step.contract)


@pytest.mark.parametrize("name", PROVED)
def test_steps_are_audited(name: str, place: jax.sharding.Sharding) -> None:
    certificate = compiled(right_steps()[name], place).certificate
    assert certificate.holds and certificate.not_audited is None
    assert (certificate.versions.platform, certificate.versions.device) == ("gpu", "NVIDIA H100 80GB HBM3")


def shifting(state, x):
    shifted = jnp.concatenate([state[:, 1:], x[:, None]], axis=1)
    return (shifted * state).sum((1, 2)), shifted


def test_copy_of_a_pool_is_found(place: jax.sharding.Sharding) -> None:
    contract = LaneContract((Pool("r"), Lane()), (Lane(), Pool("r")))
    with pytest.raises(AuditError) as raised:
        compiled(Step(shifting, contract, (jnp.ones((LANES, *ROW)), jnp.ones((LANES, ROW[1])))), place)
    assert FindingKind.POOL_COPY in {finding.kind for finding in raised.value.findings}
