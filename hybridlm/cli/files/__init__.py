"""Commands that answer every row of a file: score, decide, classify, embed, divergence, batch.

Begin with `row_command`, which has the options that they share; `batch`, whose rows are generated, has its own.
"""
