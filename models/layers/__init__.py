"""Layers that mixers and decoders share: norms, MLP, mixture of experts, RoPE, short convolution, embedding.

Imports `ops`, `state` and `sharding`. Begin with `mlp` and `moe`.
"""
