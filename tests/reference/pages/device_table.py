"""The tables of device-tables.md: memory, exchange and time of published models."""

import functools
import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
from exchanged import Devices, by_hand, counted, in_bytes, without_sources
from flax import nnx
from published import PUBLISHED

from hybridlm import EngineConfig, mesh
from hybridlm.devices.mesh import EXPERT, abstract_mesh
from hybridlm.devices.placement import Placement
from hybridlm.engine.abstract import abstract_engine
from hybridlm.engine.arguments import shard_specs_of
from hybridlm.families import MoeConfig
from ir_passes.jaxpr.collectives import Collective
from models import DecoderConfig, Family, ShardingError, family_of
from models import Devices as Share
from models.state.state import state_size

CONTEXT, LANES, PROMPTS, CHUNK = 4096, 64, 8, 256
NUMBERS = (2, 4, 8, 16)
HOST = 8
"""Devices of one machine."""


class Gpu(NamedTuple):
    """A kind of device, by its maker's data sheet.

    Attributes:
        memory: bytes.
        bandwidth: of it, bytes per second.
        products: bfloat16, dense, per second, two operations each.
    """

    name: str
    memory: float
    bandwidth: float
    products: float = 989e12


GPUS = (Gpu("H100", 80e9, 3.35e12), Gpu("H200", 141e9, 4.8e12))
NVLINK, INFINIBAND = 450e9, 50e9
"""Bytes per second that a device sends inside of a machine, and to another one."""
START, NEAR_HOP, FAR_HOP, NEAR_HOP_OF_FAR_RING = 6.6e-6, 0.6e-6, 2.7e-6, 1.0e-6
"""Seconds until a collective of NCCL begins, and of each hop of its ring."""


class Held(NamedTuple):
    """Share of one device of a model.

    Attributes:
        weights: bytes of its parameters.
        read: bytes of the parameters that a step reads, all experts included.
        products: number of parameters that multiply a token, chosen experts only.
        head: number of parameters of the head, which multiply only the last token before a sample.
        fixed, cache: bytes of a sequence's state whatever its length, and of its keys and values at the context.
    """

    weights: int
    read: int
    products: float
    head: int
    fixed: int
    cache: int


class Row(NamedTuple):
    """A model on a mesh.

    Attributes:
        devices: along each axis.
        contents: by each device.
        decode, prompts: collectives of the step that decodes, and of the one that reads prompts, and how often each is.
        compiled: `scripts/write_device_tables.py --compile` proves, compiles and audits both steps.
    """

    devices: Devices
    contents: Held
    decode: Counter[Collective]
    prompts: Counter[Collective]
    compiled: bool = False


def has_experts(config: DecoderConfig) -> bool:
    return any(isinstance(branch, MoeConfig) for layer in config.layers for branch in layer)


def meshes(config: DecoderConfig) -> list[Devices]:
    """One device, and for each count the meshes that split furthest along an axis.

    The last one is on two machines; with experts it has all axes.
    """
    results = [Devices()]
    for number in NUMBERS:
        sizes = [number] if number <= HOST else [number, HOST]
        for size, axis in product(sizes, ("expert", "model") if has_experts(config) else ("model",)):
            size = max(number for number in NUMBERS if number <= size and _fits(config, axis, number))
            results.append(Devices(**{"data": number // size, axis: size}))
    if has_experts(config):
        results.append(Devices(2, 2, 4))
    return list(dict.fromkeys(results))


def _fits(config: DecoderConfig, axis: str, size: int) -> bool:
    try:
        config.shard(Share()._replace(**{axis: size}))
    except ShardingError:
        return False
    return True


def config_of(name: str) -> DecoderConfig:
    return family_of(PUBLISHED[name]).read_config(PUBLISHED[name])


def compiled_on(config: DecoderConfig) -> set[Devices]:
    """The last of the meshes with 2, 4, 8 and 16 devices."""
    last = {prod(devices): devices for devices in meshes(config)}
    return {last[number] for number in NUMBERS}


def row_of(name: str, devices: Devices) -> Row:
    """A published model on one mesh, by the formulas."""
    family, config = family_of(PUBLISHED[name]), config_of(name)
    decode, prompts = by_hand(config, devices, LANES, 1), by_hand(config, devices, PROMPTS, CHUNK)
    return Row(devices, held(family, config, devices), decode, prompts)


def rows_of(name: str) -> list[Row]:
    """A published model on each of its meshes."""
    config = config_of(name)
    return [row_of(name, meshe)._replace(compiled=meshe in compiled_on(config)) for meshe in meshes(config)]


def compiled(name: str, devices: Devices) -> None:
    """Compile both whole-model steps and compare exchanges; needs as many devices.

    Raises:
        AssertionError: they exchange anything else than the formulas say.
    """
    row = row_of(name, devices)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "config.json"
        path.write_text(json.dumps(PUBLISHED[name]))
        engine = abstract_engine(
            path, EngineConfig(lanes=LANES, context=CONTEXT, dtype="bfloat16", chunk=CHUNK, mesh=mesh(*devices))
        )
    steps = ((LANES, 1, row.decode), (PROMPTS, CHUNK, row.prompts))
    for shape, expected in ((engine.shape("generate", lanes, tokens), sent) for lanes, tokens, sent in steps):
        program = engine.program(shape)
        actual = without_sources(program.certificate.collectives)
        assert actual == expected, f"{name}, {shape}: expected {expected}, the certificate has {actual}"
        counts = counted(program.compiled.as_text() or "")
        assert counts == in_bytes(expected), f"{name}, {shape}: expected {in_bytes(expected)}, XLA exchanges {counts}"


def held(family: Family, config: DecoderConfig, devices: Devices) -> Held:
    """Share of one device; matrices and caches in bfloat16, as on GPUs."""
    share, cuts = config.shard(Share(devices.model, devices.expert)), shard_specs_of(family, config)
    shards = Placement(abstract_mesh(*devices)).shards(family.weights(config), cuts)
    numbers = size = experts = 0
    for weight in family.weights(config):
        local = prod(shards[weight.path].local_shape)
        numbers, size = numbers + local, size + local * (4 if weight.float32 else 2)
        experts += local if any(cut.axis == EXPERT for cut in cuts.get(weight.path, ())) else 0
    routers = [item.router for layer in config.layers for item in layer if isinstance(item, MoeConfig)]
    chosen = routers[0].per_token / routers[0].experts if routers else 1
    head = share.vocab_size * config.hidden_size
    looked_up = 0 if config.tied else head
    built = functools.cache(lambda layer: nnx.eval_shape(lambda: layer.build(config.hidden_size, nnx.Rngs(0))))
    state = state_size([built(branch) for layer in share.layers for branch in layer], jnp.bfloat16)
    return Held(
        size,
        size - 2 * looked_up,
        numbers - head - looked_up - experts * (1 - chosen),
        head,
        state.fixed,
        state.of(CONTEXT) - state.fixed,
    )


def exchanging(collectives: Counter[Collective], devices: Devices) -> float:
    """Seconds that the collectives of a step take, one after another."""
    return sum(count * _seconds(item, devices) for item, count in collectives.items())


def _seconds(collective: Collective, devices: Devices) -> float:
    # The last axis is the fastest: devices of one machine are neighbours.
    inner = devices.expert if collective.axes == ("expert",) else devices.model * devices.expert
    machines = max(inner // HOST, 1)
    hops = (collective.devices - 1) * (1 if collective.operation == "all_gather" else 2)
    distance = (machines - 1) * (1 if collective.operation == "all_gather" else 2)
    near = NEAR_HOP if machines == 1 else NEAR_HOP_OF_FAR_RING
    wire = NVLINK if machines == 1 else INFINIBAND
    return START + (hops - distance) * near + distance * FAR_HOP + collective.sent / wire


def seconds(row: Row, gpu: Gpu, tokens: int) -> tuple[float, float] | None:
    """Seconds of a step and its exchange; None if the model does not fit.

    Args:
        tokens: of each lane; 1 is the step that decodes.
    """
    contents, data = row.contents, row.devices.data
    decoding, reading = LANES // data, max(PROMPTS // data, 1)
    if contents.weights + (decoding + reading) * (contents.fixed + contents.cache) > gpu.memory:
        return None
    lanes, collectives = (decoding, row.decode) if tokens == 1 else (reading, row.prompts)
    cached = contents.cache if tokens == 1 else contents.cache * CHUNK // CONTEXT
    memory = (contents.read + lanes * (2 * contents.fixed + cached)) / gpu.bandwidth
    products = 2 * lanes * (contents.products * tokens + contents.head) / gpu.products
    wire = exchanging(collectives, row.devices)
    return max(memory, products) + wire, wire


def line(row: Row) -> str:
    """A line of a table."""
    contents, devices = row.contents, row.devices
    sizes = ", ".join(f"{axis}={size}" for axis, size in devices._asdict().items() if size > 1)
    state = (LANES + PROMPTS) // devices.data * (contents.fixed + contents.cache)
    cells = [
        (sizes or "one device") + (" (compiled)" if row.compiled else ""),
        f"{contents.weights / 1e9:.1f}",
        f"{state / 1e9:.1f}",
        str(row.decode.total()),
    ]
    for tokens, collectives in ((1, row.decode), (CHUNK, row.prompts)):
        cells.append(f"{sum(count * item.sent for item, count in collectives.items()) / 1e6:,.0f}")
        cells += [_milliseconds(seconds(row, gpu, tokens)) for gpu in GPUS]
    return f"| {' | '.join(cells)} |"


def _milliseconds(time: tuple[float, float] | None) -> str:
    return "-" if time is None else f"{time[0] * 1e3:.1f} ({time[1] * 1e3:.1f})" if time[1] else f"{time[0] * 1e3:.1f}"


def page(tables: Mapping[str, Sequence[Row]]) -> str:
    """The text of device-tables.md."""
    names = [gpu.name for gpu in GPUS]
    columns = ["mesh", "weights, GB", "state, GB", "exchanges"]
    for label in ("decode", "prompts"):
        columns += [f"{label}: MB sent", *(f"ms, {name}" for name in names)]
    heading = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"
    parts = [f"## {name}\n\n{heading}" + "".join(f"{line(row)}\n" for row in rows) for name, rows in tables.items()]
    return f"""{INTRODUCTION}
{chr(10).join(parts)}"""


INTRODUCTION = f"""# Published models on 2, 4, 8 and 16 devices

What one device holds, sends and needs the time for, so that a mesh can be chosen before machines are rented.
[devices.md](devices.md) says which axis is for what, and how to compute these bytes in your head. Written by
scripts/write_device_tables.py from the config.json of each model by those formulas. On the meshes marked "compiled"
its option `--compile` proves that both steps of the whole model keep their lanes apart, compiles them by XLA for as
many virtual devices of a CPU, and audits them; what these programs exchange, counted in their text, is exactly that.
**Nothing on this page was run, and no time was measured.** For a proof on any other mesh, or another model:

```
hybridlm verify --abstract --config config.json --mesh data=2,model=8
```

* `weights`, `state`: GB on each device, matrices and caches in bfloat16; {LANES} sequences that decode and {PROMPTS}
  whose prompts are read, each of {CONTEXT} tokens, on all devices together.
* `exchanges`: collectives of a step. `MB sent`: by each device in one step, over a ring; it receives as many.
* `decode`: a token of each of {LANES} sequences. `prompts`: {CHUNK} tokens of each of {PROMPTS}.
* `ms`: of a step, in brackets those of exchanging, which nothing hides. `-`: it does not fit, scratch not counted.

Over `data` alone nothing is exchanged: `data=8` is eight times the first line of a table, with an eighth of its state.

The time is the longer one of reading memory and of the products, and after it that of exchanging:

* memory: all weights, the embedding only where it is the head too, experts as if every one were chosen; the recurrent
  state read and written, keys and values read. Products: two operations for each parameter and token, experts as often
  as they are chosen.
* devices: H100 SXM, 80 GB, 3.35 TB/s; H200 SXM, 141 GB, 4.8 TB/s; both 989 dense bfloat16 TFLOP/s (NVIDIA's data
  sheets).
* wires: 450 GB/s each way over NVLink inside a machine of eight (900 both ways, the same data sheets); between machines
  50 GB/s each way for each device (400 Gb/s InfiniBand for each, as a DGX H100 has it). A collective of devices of two
  machines goes at the pace of the slower wire.
* every collective waits: 6.6 microseconds to begin, 0.6 for each hop of its ring; where the ring leaves a machine, 2.7
  for such a hop and 1.0 for the others. By these numbers NCCL itself chooses (src/graph/tuning.cc, ring, LL).

No step reaches any of these speeds: read the lines against one another.
"""
