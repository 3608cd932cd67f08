"""Contracts: which inputs and outputs of a step are shared, per lane, slot maps or pools of rows.

Imports `jaxpr`. Begin with `contract` and `entries`; `declared` has what is declared instead of proved.
"""
