"""The engine: continuous batching over pools of rows, and everything that decides what runs next.

Imports the folders below it: prefix cache, programs, requests, rows, tuning, processes, checkpoints and text. Begin
with `engine`, which holds parameters, programs and pools, then `scheduler`: sequences join, are prefilled, decode and
leave at any step. `decoding` and `speculation` make the steps of the decode pool, `memory` admits a model before
anything large is allocated.
"""
