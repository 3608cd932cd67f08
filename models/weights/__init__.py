"""Parameters and the checkpoint tensors that they are built from.

Imports `decoder`, `mixers` and `layers`. Begin with `sources`; `layer_weights` has what families share.
"""
