"""Tensor and expert parallelism of a model: which segment of which dimension each device holds.

Imports nothing of models. Begin with `sharded_dim` and `shard_sizes`.
"""
