"""The forms in which a secret's value is looked for: as it is, escaped, and in the encodings that tools use. Pure.

They are those in which programs show a value by accident: in JSON, in a traceback, in an address, in a header, in a
dump. A program that means to show a value can write it in any other way.
"""

import base64
import html
import json
import string
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote, quote_plus

# What different libraries leave as it is in an address: Python's two defaults, JavaScript's encodeURIComponent and
# encodeURI.
_SAFE: Final = ("", "/", "!*'()", ";/?:@&=+$,#!*'()")
_WIDTHS: Final = (64, 76)  # characters of a line of base64: PEM's, and MIME's (RFC 2045)
_LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def forms(value: str) -> frozenset[bytes]:
    """Return all byte sequences that stand for a value; white space around it is not part of any.

    A value of 8 bytes has about 10, each at most three times as long as the value, or six times where it is escaped.
    """
    value = value.strip()
    data = value.encode()
    texts = {*_escaped(value), *_in_addresses(value), data.hex(), data.hex().upper()}
    return frozenset({data, *(text.encode() for text in texts), *_base64(data)})


def _escaped(value: str) -> Iterator[str]:
    """Yield it as JSON, Python and HTML write it inside of text."""
    for ascii_only in (True, False):
        yield json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        yield json.dumps(value, ensure_ascii=ascii_only)[1:-1].replace("/", "\\/")
    yield repr(value)[1:-1]
    yield value.replace("\n", "\r\n")
    yield from (html.escape(value, quote=quoted) for quoted in (True, False))


def _in_addresses(value: str) -> Iterator[str]:
    """Yield it in percent encoding (RFC 3986), with hexadecimal digits of both cases."""
    encoded = {*(quote(value, safe=safe) for safe in _SAFE), quote_plus(value)}
    for text in encoded:
        yield text
        first, *parts = text.split("%")
        yield "%".join([first, *(part[:2].translate(_LOWER) + part[2:] for part in parts)])


def _base64(data: bytes) -> Iterator[bytes]:
    """Yield what base64 makes of it wherever it stands in longer data, without what depends on its neighbours.

    Where nothing comes after it, its last bits stand in a character of their own.
    """
    for before in range(3):
        skipped, bits = -(-before * 8 // 6), (before + len(data)) * 8
        encoded = base64.b64encode(bytes(before) + data)
        for whole in (encoded[skipped : bits // 6], encoded[skipped:].rstrip(b"=")):
            yield whole
            yield whole.translate(bytes.maketrans(b"+/", b"-_"))
            if not before:
                yield from (
                    b"\n".join(whole[at : at + width] for at in range(0, len(whole), width)) for width in _WIDTHS
                )
