"""Parameters and the checkpoint tensors that they are made of.

Imports `decoder`, `mixers` and `layers`. Begin with `sources`; `layer_weights` has what families share.
"""
