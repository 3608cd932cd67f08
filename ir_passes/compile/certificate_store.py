"""Certificates by what they hold for: a proof that was found once is not looked for again.

Beside them lies what XLA wrote of programs that do not give out their buffer assignment (see `buffer_assignment`).
"""

import zlib
from dataclasses import dataclass, replace

from ir_passes.compile.certificate import Certificate, Versions
from ir_passes.files.store import FileStore
from ir_passes.jaxpr.fingerprint import fingerprint

DUMP = ".hlo.pb.zlib"


@dataclass(frozen=True)
class Key:
    """The program, contract, passes and versions that a certificate holds for.

    Attributes:
        traced: fingerprint of the traced program.
        contract: fingerprint of the bound contract.
        rules: fingerprint of the rewrites with their options and of what is declared row-wise.
        versions: of everything that took part, but for the options that XLA is given.
    """

    traced: str
    contract: str
    rules: str
    versions: Versions

    @property
    def name(self) -> str:
        """Name of the file."""
        return fingerprint(self) + ".json"


class CertificateStore(FileStore):
    """A directory of certificates and dumps."""

    def find(self, key: Key) -> Certificate | None:
        """Return the certificate of a key; None where there is no whole one."""
        found = self.read_record(key.name, Certificate.from_json)
        if found is None:
            return None
        # What was proved is proved whatever else XLA was told: the certificate has its options beside the key's flags.
        versions = replace(found.versions, flags=key.versions.flags)
        same = (found.fingerprints.traced, found.fingerprints.contract, versions)
        holds = found.is_proof and set(key.versions.flags) <= set(found.versions.flags)
        return found if holds and same == (key.traced, key.contract, key.versions) else None

    def keep(self, key: Key, certificate: Certificate) -> None:
        """Write a certificate; another process sees all of it or nothing.

        Raises:
            OSError: the directory cannot be written.
        """
        self.write_file(key.name, certificate.to_json().encode())

    def find_dump(self, key: str, most: int) -> bytes | None:
        """Return XLA's dump of a program, of at most this many bytes; None where no whole one is there."""
        packed, unpacker = self.read_file(f"{key}{DUMP}", most), zlib.decompressobj()
        try:
            found = b"" if packed is None else unpacker.decompress(packed, most)
        except zlib.error:
            return None
        return found if unpacker.eof else None

    def keep_dump(self, key: str, dump: bytes) -> None:
        """Write what XLA wrote of a program.

        Raises:
            OSError: the directory cannot be written.
        """
        self.write_file(f"{key}{DUMP}", zlib.compress(dump))
