"""Model families: config.json to decoder settings, and checkpoint tensors to parameters.

Imports everything in models. Begin with `registry` and a short family such as `lfm2`; docs/adding-a-family.md writes
one.
"""
