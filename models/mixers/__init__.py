"""Sequence mixers: attention, Gated DeltaNet, Kimi Delta Attention, Mamba, Mamba2, short convolution.

Imports `layers`, `ops`, `state` and `sharding`. Begin with `attention` and `gated_delta_net`.
"""
