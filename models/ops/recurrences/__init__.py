"""Linear recurrences over tokens: the delta rule and SSD, token by token and in chunks (chunkwise); with their kernels.

Imports the rest of `ops`. Begin with `recurrence`, `delta_rule` and `ssd`. `chunked_scan` is what their chunked forms
share; `recurrent_step` picks the kernel of the platform for a few tokens. Modules that end in `_cpu`, `_gpu` and `_tpu`
are kernels. No form uses `jax.lax.associative_scan`: inside a chunk tokens are products, chunks follow one another.
"""
