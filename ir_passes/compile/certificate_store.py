"""Certificates in a directory, by what they hold for: a proof that was found once is not looked for again.

Beside them lies what XLA wrote of programs that do not give out their buffer assignment (see `buffer_assignment`).

A file that cannot be read, or holds something else than it should, is as good as none: its proof is made anew.
"""

import os
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from ir_passes.compile.certificate import Certificate, Versions
from ir_passes.jaxpr.fingerprint import fingerprint
from ir_passes.jaxpr.record import MOST_CHARACTERS, RecordError

DUMP = ".hlo.pb.zlib"


@dataclass(frozen=True)
class Key:
    """What a certificate holds for.

    Attributes:
        traced: fingerprint of the traced program.
        contract: fingerprint of the bound contract.
        rules: fingerprint of the rewrites with their options and of what is declared row-wise.
        versions: of everything that took part.
    """

    traced: str
    contract: str
    rules: str
    versions: Versions

    @property
    def name(self) -> str:
        """Of the file."""
        return fingerprint(self) + ".json"


@dataclass(frozen=True)
class CertificateStore:
    """A directory of certificates, which any number of processes may read and write.

    Attributes:
        directory: made when the first certificate is kept.
    """

    directory: Path

    def find(self, key: Key) -> Certificate | None:
        """The certificate of a key; None where there is none that is whole."""
        try:
            with open(self.directory / key.name, "rb") as file:
                text = file.read(MOST_CHARACTERS + 1)
            found = Certificate.from_json(text)
        except (OSError, RecordError):
            return None
        same = (found.fingerprints.traced, found.fingerprints.contract, found.versions)
        return found if same == (key.traced, key.contract, key.versions) and found.is_proof else None

    def keep(self, key: Key, certificate: Certificate) -> None:
        """Write a certificate; another process sees all of it or nothing.

        Raises:
            OSError: the directory cannot be written.
        """
        self._write(key.name, certificate.to_json().encode())

    def find_dump(self, key: str, most: int) -> bytes | None:
        """What XLA wrote of a program of so many bytes at most; None where there is nothing that is whole."""
        try:
            unpacker = zlib.decompressobj()
            found = unpacker.decompress((self.directory / f"{key}{DUMP}").read_bytes(), most)
        except (OSError, zlib.error):
            return None
        return found if unpacker.eof else None

    def keep_dump(self, key: str, dump: bytes) -> None:
        """Write what XLA wrote of a program.

        Raises:
            OSError: the directory cannot be written.
        """
        self._write(f"{key}{DUMP}", zlib.compress(dump))

    def _write(self, name: str, content: bytes) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(prefix=name[:16], suffix=".part", dir=self.directory)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, self.directory / name)
        except BaseException:
            os.unlink(part)
            raise
