"""Linear recurrences over tokens: the delta rule and SSD.

Imports the rest of `ops`. Begin with `recurrence`, `delta_rule` and `ssd`; `recurrent_step` picks the platform's kernel
in `_cpu`, `_gpu` or `_tpu`. No form uses `jax.lax.associative_scan`: tokens of a chunk are products, chunks follow one
another.
"""
