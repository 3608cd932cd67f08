"""Benchmarks: decoding and prefill of this engine beside the machine's limits and beside other engines.

Imports LM and what is below it. Begin with `sides`, which says what is compared, and `floor`, the least time of a step.
"""
