"""Requests and results: validation of what users pass in, sequences while they are alive, completions and scores.

Imports rows, sampling, drafting and text. Begin with `sequence` and `results`.
"""
