"""Scores of whole files, JSON lines or Parquet, window by window: a run that was killed continues.

Imports scoring, requests, the radix tree of the prefix cache, and files; the scorer of a row is passed in. Begin with
`score_file`; `rows` has what formats share, `parts` what an unfinished run leaves.
"""
