"""The engine: continuous batching over one pool, and the next step.

Imports the folders below it: prefix cache, programs, requests, rows, drafting, steps, processes, devices, checkpoints
and text. Begin with `engine`, which holds parameters, programs and the pool, then `scheduler`: admission of sequences
to rows, where they are prefilled and decode until they leave. `decoding` and `speculation` make the decode steps,
`memory` checks that a model fits before anything large is allocated.
"""
