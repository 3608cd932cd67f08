"""Fields of config.json: read strictly, every fault of a file in one error.

Imports `decoder` and `layers`, whose settings it returns. Begin with `reader`; `fields` has what most families share.
"""
