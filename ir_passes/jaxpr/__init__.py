"""JAX's intermediate representation; only this folder touches it. Begin with `ir`."""
