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
    """A hash of some bytes.

    Attributes:
        algorithm: Its name, as hashlib has it.
        value: The hash, in hexadecimal.
    """

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
        for algorithm in _STRONGEST_FIRST:
            if algorithm in values:
                return cls(algorithm, _decoded(values[algorithm], hashlib.new(algorithm).digest_size))
        raise ValueError("no hash of a known algorithm")

    @property
    def is_strong(self) -> bool:
        """Return whether nobody can make other bytes with the same hash."""
        return self.algorithm != "sha1"


def _decoded(values: set[str], size: int) -> str:
    if len(values) != 1:
        raise ValueError("several hashes of one algorithm")
    try:
        value = b64decode(values.pop(), validate=True)
    except binascii.Error as error:
        raise ValueError("no base64") from error
    if len(value) != size:
        raise ValueError("a hash of the wrong length")
    return value.hex()
