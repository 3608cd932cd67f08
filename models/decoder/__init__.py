"""The decoder: residual layers around mixers and MLPs, and the multi-token-prediction head.

Imports `layers`, `ops`, `state` and `sharding`. Begin with `decoder`.
"""
