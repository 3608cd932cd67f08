"""Parameters and their checkpoint tensors.

Imports `decoder`, `mixers` and `layers`. Begin with `sources`; `layer_weights` has the layers that families share.
"""
