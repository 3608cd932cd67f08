"""Sampling: the next token of every lane from its logits.

Begin with `sampling`.
"""
