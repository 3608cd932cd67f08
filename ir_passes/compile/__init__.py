"""Compilation of a step, from trace to audit, with its certificate. Begin with `stages`."""
