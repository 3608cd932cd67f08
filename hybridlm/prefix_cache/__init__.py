"""The prefix cache: recurrent states and KV blocks in a radix tree over tokens.

Begin with `cache`; `radix_tree` finds prefixes, `memory` evicts, `moves` copies states out of rows and back.
"""
