"""Sanitizer: a traced step with shadow labels of each row's owner. Begin with `sanitize`."""
