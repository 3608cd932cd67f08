"""The command line, one module per command.

Imports everything. Begin with `main`, the list of commands; `options` has the shared options.
"""
