"""All programs of the zoo by name; those of the model families are in `zoo.real_models`."""

from zoo import (
    agreement,
    attention,
    batches,
    chunked,
    experts,
    gated_delta,
    labelled_layers,
    layers,
    loops,
    mamba,
    packed,
    pages,
    read_kernels,
    row_caches,
    rows,
    sharded,
    sharded_experts,
    sharded_rows,
    speculative,
    verification,
)
from zoo.program import Program

THEMES = (
    gated_delta,
    mamba,
    packed,
    attention,
    experts,
    layers,
    labelled_layers,
    loops,
    row_caches,
    rows,
    pages,
    read_kernels,
    speculative,
    sharded,
    sharded_experts,
    sharded_rows,
    agreement,
    chunked,
    verification,
    batches,
)
PROGRAMS: dict[str, Program] = {program.name: program for theme in THEMES for program in theme.PROGRAMS}
