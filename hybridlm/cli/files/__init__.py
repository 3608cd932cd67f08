"""Commands that answer every row of a file: score, decide, classify, embed, divergence, batch.

A part of `cli`, which imports it; imports the options of `cli`, files and tasks. Begin with `commands`.
"""
