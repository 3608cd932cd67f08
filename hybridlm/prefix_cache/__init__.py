"""The prefix cache: recurrent states and KV blocks of prompts, found by the tokens that they begin with.

Imports programs, requests, rows, steps and devices. Begin with `cache`; `radix_tree` finds the longest prefix,
`memory` moves states between device and host and evicts, `budget` reads the limit that users give.
"""
