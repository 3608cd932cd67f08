"""Tensor and expert parallelism of a model: the part of each dimension on each device.

Imports nothing of models. Begin with `sharded_dim` and `shard_sizes`.
"""
