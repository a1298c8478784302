"""Signed addresses of files, as E2B's clients make them: a hash over the path, what is done, and their token.

The token itself is not told, so those that the owner's keys may have got are tried.
"""

import base64
import hashlib
import hmac
import time
from typing import Final

from starlette.datastructures import QueryParams

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.current import CallerToken
from sandpod_gateway.auth.sandbox_tokens import SandboxTokens
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.sandboxes.service import Sandboxes

PREFIX: Final = "v1_"
MAX_DIGITS: Final = 12
_STEP: Final = "Make another one with download_url or upload_url."


async def signer(
    tokens: SandboxTokens, sandboxes: Sandboxes, sandbox: str, method: str, query: QueryParams
) -> CallerToken | None:
    """Return who has signed a request for a file; None where nobody has. Raises SandpodError: it has expired."""
    given, end = query.get("signature", ""), query.get("signature_expiration", "")
    if not given.startswith(PREFIX) or not given.isascii():
        return None
    if end and not (end.isascii() and end.isdecimal() and len(end) <= MAX_DIGITS):
        return None
    operation = "write" if method == "POST" else "read"
    said = f"{query.get('path', '')}:{operation}:{query.get('username', '')}"
    found: str | None = None
    for token in tokens.of(await sandboxes.owner_of(sandbox), sandbox):
        if hmac.compare_digest(signature(f"{said}:{token}{f':{end}' if end else ''}"), given):
            found = token
    if found is None:
        return None
    if end and time.time() >= int(end):
        message = "The signed address has expired."
        raise SandpodError(ErrorCode.UNAUTHORIZED, message, next_step=_STEP)
    return tokens.check(found, sandbox)


def signature(text: str) -> str:
    """Return the signature of a text."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return PREFIX + base64.b64encode(digest).rstrip(b"=").decode("ascii")
