r"""How paths are spelled in frames, so that whatever a listing names can be named back: any bytes, as plain text.

Bytes of a name that are not UTF-8, and control characters, are spelled `\x` and two hexadecimal digits: `caf\xe9.csv`,
`line\x0abreak.txt`. A backslash with which a name itself seems to begin such a spelling is `\x5c`; any other stands for
itself. NUL and the slash are in no name.
"""

import re

_DIGITS = "(?:0[1-9a-f]|1[0-9a-f]|5c|7f|[89a-f][0-9a-f])"
_ESCAPE = re.compile(rf"\\x({_DIGITS})")
_SPECIAL = re.compile(rf"[\x01-\x1f\x7f\udc80-\udcff]|\\(?=x{_DIGITS})")


def spell(path: str) -> str:
    """Return how a path is spelled, of which Python has the bytes that are not UTF-8 as lone surrogates."""
    return _SPECIAL.sub(lambda found: f"\\x{ord(found[0]) & 0xFF:02x}", path)


def unspell(text: str) -> str:
    """Return the path that is meant, in the form that Python's file functions take."""
    return _ESCAPE.sub(lambda found: bytes.fromhex(found[1]).decode("ascii", "surrogateescape"), text)
