"""A key-value store shared by the processes, on JAX's coordination service.

The service runs in process 0, over the connections that `jax.distributed.initialize` has made. A record of 4 KB takes a
tenth of the time of a broadcast by the devices, and a process that waits for one keeps no device busy, however long
process 0 is idle. `jax.distributed` itself offers no such store, only JAX's own client has it.
"""

import jax

from ir_passes.jaxpr.jax_private import coordination


class KeyValues:
    """The store of the processes that `jax.distributed` has connected.

    Attributes:
        address: host and port of the service, in process 0.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        state = coordination()
        if state.client is None:
            raise RuntimeError("the processes have not been brought together: call jax.distributed.initialize first")
        self._client = state.client
        self.address = str(state.coordinator_address)

    def set(self, name: str, value: bytes) -> None:
        """Set a value, replacing an earlier one."""
        self._client.key_value_set_bytes(f"{self._folder}/{name}", value, allow_overwrite=True)

    def get(self, name: str, seconds: float) -> bytes | None:
        """Wait up to `seconds` for a value; None after that time."""
        try:
            return self._client.blocking_key_value_get_bytes(f"{self._folder}/{name}", max(1, int(1000 * seconds)))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            return None

    def list(self, folder: str) -> dict[str, bytes]:
        """Return all values with keys in "folder/", by the rest of the key."""
        entries = self._client.key_value_dir_get_bytes(f"{self._folder}/{folder}/")
        return {name.rsplit("/", 1)[-1]: value for name, value in entries}

    def delete(self, name: str) -> None:
        """Delete a value, and all values with a key that begins with "name/"."""
        self._client.key_value_delete(f"{self._folder}/{name}")
