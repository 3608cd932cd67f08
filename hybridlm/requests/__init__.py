"""Requests and results: input validation, active sequences, completions and scores.

Imports rows, sampling, drafting and text. Begin with `sequence` and `results`.
"""
