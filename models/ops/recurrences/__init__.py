"""Linear recurrences over tokens: the delta rule and SSD, by token and by chunk.

Imports the rest of `ops`. Begin with `recurrence`, `delta_rule` and `ssd`, which share `chunked_scan`; `recurrent_step`
picks the platform's kernel for a few tokens. Modules that end in `_cpu`, `_gpu` and `_tpu` are kernels. No form uses
`jax.lax.associative_scan`: inside a chunk tokens are products, chunks follow one another.
"""
