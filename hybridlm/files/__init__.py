"""Files: atomic replacement, JSON lines and JSON that is read strictly.

Imports `errors`. Begin with `atomic`: a file or directory appears whole or not at all.
"""
