"""Typed questions about a state: one read of the prompt gives each option a probability.

Imports scoring, which reads the residual stream, requests, text, checkpoint and files. Begin with `decide`: `questions`
has questions and answers, `settings` the files of a decision model, `prompts` the token ids and the places to read,
`heads` the scores of options there.
"""
