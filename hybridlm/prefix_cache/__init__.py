"""The prefix cache: recurrent states and KV blocks in a radix tree over tokens.

Imports programs, requests, rows, steps and devices. Begin with `cache`; `radix_tree` finds the longest prefix, `memory`
moves states between device and host and evicts, `moves` copies states out of rows and back, `budget` reads the limit
that users give.
"""
