"""Certificates by program, contract, rewrites and versions, so that each proof is made once."""

from dataclasses import dataclass

from ir_passes.compile.certificate import Certificate, Versions
from ir_passes.files.store import FileStore
from ir_passes.jaxpr.fingerprint import fingerprint


@dataclass(frozen=True)
class Key:
    """Fingerprints of a step before XLA; `versions` are without XLA options.

    A directory (`FileStore`) has one file of each key.
    """

    traced: str
    contract: str
    rules: str
    versions: Versions

    @property
    def name(self) -> str:
        return fingerprint(self) + ".json"

    def find(self, store: FileStore) -> Certificate | None:
        """Return the trusted proof of this key, or None."""
        certificate = store.read_record(self.name, Certificate.from_json)
        if certificate is None or not certificate.is_proof or not certificate.made_by(self.versions):
            return None
        prints = certificate.fingerprints
        return certificate if Key(prints.traced, prints.contract, prints.rules, self.versions) == self else None

    def keep(self, store: FileStore, certificate: Certificate) -> None:
        """Write a certificate atomically; raises OSError or UntrustedError."""
        store.write_file(self.name, certificate.to_json().encode())
