"""Sanitizer: a traced step that runs with shadow labels of each row's owner. Begin with `sanitize`."""
