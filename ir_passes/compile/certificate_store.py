"""Certificates by program, contract, rewrites and versions, so that each proof is made once."""

from dataclasses import dataclass

from ir_passes.compile.certificate import Certificate, Versions
from ir_passes.files.store import FileStore
from ir_passes.jaxpr.fingerprint import fingerprint


@dataclass(frozen=True)
class Key:
    """Fingerprints of a step before XLA; `versions` are without XLA options."""

    traced: str
    contract: str
    rules: str
    versions: Versions

    @property
    def name(self) -> str:
        return fingerprint(self) + ".json"


class CertificateStore(FileStore):
    """A directory of certificates, one file each."""

    def find(self, key: Key) -> Certificate | None:
        """Return the trusted proof of a key, or None."""
        certificate = self.read_record(key.name, Certificate.from_json)
        if certificate is None or not certificate.is_proof or not certificate.made_by(key.versions):
            return None
        prints = certificate.fingerprints
        return certificate if Key(prints.traced, prints.contract, prints.rules, key.versions) == key else None

    def keep(self, key: Key, certificate: Certificate) -> None:
        """Write a certificate atomically; raises OSError or UntrustedError."""
        self.write_file(key.name, certificate.to_json().encode())
