"""Files: atomic output files, JSON lines, and strict JSON and text files of checkpoints.

Imports `errors` and `ir_passes.files`. Begin with `atomic`.
"""
