"""Sampling: the next token of every lane from its logits, each lane by itself.

Imports nothing of hybridlm. Begin with `sampling`; `int8_head` finds the most likely token without computing all
logits, `vocab_parallel` works on a vocabulary that is sharded over devices.
"""
