"""The engine: continuous batching over one pool, and the next step.

Imports prefix cache, programs, requests, rows, drafting, steps, processes, devices, checkpoints and text. Begin with
`engine` (parameters, programs, pool), then `scheduler` (from admission to the last token). `decoding` and `speculation`
make decode steps; `memory` checks that a model fits.
"""
