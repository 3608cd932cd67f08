"""Tasks on the rows of files, part by part: a killed run continues.

Formats are JSON lines, CSV, Parquet, lines of text, and gzip.

Imports scoring, decision models, `text_model`, requests, the radix tree of the prefix cache, and files. Begin with
`run_file`; `task` and `rows` have the interfaces of tasks and formats.
"""
