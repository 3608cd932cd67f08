"""Models of `LM.save`: the index of the directory, writer and reader of the parameters.

A part of `checkpoint`, and imported by it. Begin with `index`, the contents of a directory.
"""
