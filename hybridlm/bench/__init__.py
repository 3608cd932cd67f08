"""Benchmarks: throughput of decoding and prefill, compared with the machine's limits and with other engines.

Imports LM and what is below it. Begin with `sides`, which says what is compared, and `floor`, the least time of a step.
"""
