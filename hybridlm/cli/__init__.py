"""The command line, one module per command.

Imports everything. Begin with `main`, which names the commands; `options` has what they share.
"""
