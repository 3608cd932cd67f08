"""Requests and results: input validation, active sequences, completions and scores.

Imports grammars, rows, steps, sampling, drafting, checkpoints and text. Begin with `sequence` and `results`.
"""
