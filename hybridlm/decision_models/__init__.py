"""Typed questions about a state, each answered with a probability for every option, by one read of the prompt.

Imports scoring, which reads the residual stream, requests, text, checkpoint and files. Begin with `decide`: `questions`
has questions and answers, `settings` the files of a decision model, `prompts` the token ids and where they are read,
`heads` the scores of options there.
"""
