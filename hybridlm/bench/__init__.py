"""Benchmarks: throughput of decoding and prefill, compared with machine limits and other engines.

Imports LM and the layers below. Begin with `sides`, the compared engines, and `limits`, the least time of a step.
"""
