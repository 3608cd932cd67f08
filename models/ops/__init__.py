"""Array operations: recurrences over tokens (`recurrences/`), matrix products, layouts for XLA.

Imports `cpu_kernels`, `state` and `sharding`. Begin with `linear`, and with `recurrence` in `recurrences`.
"""
