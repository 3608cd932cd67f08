"""Models that `LM.save` wrote: the index of the directory, and the parameters' way into files and back.

A part of `checkpoint`, and imported by it. Begin with `index`, which says what lies in a directory.
"""
