"""The command line, one module per command.

Begin with `main`, the list of commands; `options` has the shared options.
"""
