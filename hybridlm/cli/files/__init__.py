"""Commands that answer every row of a file: score, decide, classify, embed, divergence, batch.

A part of `cli`, which imports it; imports the options of `cli`, files and files of scores. Begin with `row_command`,
which has the options that they share; `batch`, whose rows are generated, has its own.
"""
