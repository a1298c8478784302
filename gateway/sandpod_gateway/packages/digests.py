"""Hashes of packages, as registries announce and as bytes have them."""

import binascii
import hashlib
from base64 import b64decode
from dataclasses import dataclass
from io import BufferedIOBase
from typing import Final, Self

_STRONGEST_FIRST: Final = ("sha512", "sha384", "sha256", "sha1")


@dataclass(frozen=True, slots=True)
class Digest:
    """A hash of some bytes: the algorithm's name, as hashlib has it, and the hash in hexadecimal."""

    algorithm: str
    value: str

    @classmethod
    def of(cls, file: BufferedIOBase, algorithm: str) -> Self:
        """Return the hash of a whole file, which is at its beginning then."""
        file.seek(0)
        value = hashlib.file_digest(file, algorithm).hexdigest()
        file.seek(0)
        return cls(algorithm, value)

    @classmethod
    def announced(cls, integrity: str) -> Self:
        """Return the one hash of the strongest algorithm in a text of the form that npm uses.

        Raises:
            ValueError: There is none, there are several, or it is not well formed.
        """
        values: dict[str, set[str]] = {}
        for each in integrity.split():
            algorithm, _, value = each.partition("-")
            values.setdefault(algorithm, set()).add(value)
        strongest = next((each for each in _STRONGEST_FIRST if each in values), None)
        if strongest is None:
            raise ValueError("no hash of a known algorithm")
        if len(values[strongest]) != 1:
            raise ValueError("several hashes of one algorithm")
        try:
            found = b64decode(values[strongest].pop(), validate=True)
        except binascii.Error as error:
            raise ValueError("no base64") from error
        if len(found) != hashlib.new(strongest).digest_size:
            raise ValueError("a hash of the wrong length")
        return cls(strongest, found.hex())

    @property
    def is_strong(self) -> bool:
        """Return whether nobody can make other bytes with the same hash."""
        return self.algorithm != "sha1"
