"""Tasks on the rows of files, JSON lines or Parquet, part by part: a killed run continues.

Imports scoring, decision models, `text_model`, requests, the radix tree of the prefix cache, and files. Begin with
`run_file`; `task` has the interface of tasks, `options` the options of a run, `rows` the interface of formats.
"""
