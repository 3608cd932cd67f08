"""The engine: continuous batching over pools of rows, and the choice of the next step.

Imports the folders below it: prefix cache, programs, requests, rows, drafting, steps, processes, devices, checkpoints
and text. Begin with `engine`, which holds parameters, programs and pools, then `scheduler`: admission of sequences to
rows, which are prefilled, decode and leave at any step. `decoding` and `speculation` make the steps of the decode pool,
`memory` checks that a model fits before anything large is allocated.
"""
