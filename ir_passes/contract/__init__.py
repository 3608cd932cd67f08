"""Contracts of steps. Begin with `contract` and `entries`; `declared` has declarations that replace a proof."""
