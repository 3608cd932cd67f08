"""The engine: continuous batching over one pool, and the next step.

Begin with `engine` (parameters, programs, pool), then `scheduler` (from admission to the last token). `decoding` and
`speculation` make decode steps.
"""
