"""Sequence mixers: attention, latent attention, Gated DeltaNet, Kimi Delta Attention, Mamba2, gated short convolution.

Imports `layers`, `ops`, `state` and `sharding`. Begin with `attention` and `gated_delta_net`.
"""
