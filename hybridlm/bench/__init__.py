"""Benchmarks: decoding and prefill, compared with machine limits and other engines.

Begin with `sides`, the compared engines, and `limits`, the least time of a step.
"""
