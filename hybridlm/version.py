"""The version of hybridlm, for whoever cannot import the package itself."""

__version__ = "0.2.0"
