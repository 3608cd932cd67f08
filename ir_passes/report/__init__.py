"""Tables and pictures of certificates and plans, as HTML and SVG.

Imports `proof`, `scratch` and `jaxpr`. Begin with `html`.
"""
