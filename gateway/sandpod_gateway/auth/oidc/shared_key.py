"""The key that all gateways of an installation share for sign-ins: whichever finds no key makes one."""

import re
import secrets
from typing import Final

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.links import MAX_TRIES, SecretStore
from sandpod_gateway.errors import SandpodError

KEY_BYTES: Final = 32
_KEY: Final = re.compile(rb"[A-Za-z0-9_-]{43}")


async def shared_key(store: SecretStore) -> str:
    """Return the key in a store. Raises SandpodError: backend_unavailable, or backend_error for what is no key."""
    for _ in range(MAX_TRIES):
        stored = await store.read()
        if stored is None:
            message = "There is no Secret for the key of sign-ins, so users can't sign in."
            step = "Create the empty Secret that the chart has for it."
            raise SandpodError(ErrorCode.BACKEND_UNAVAILABLE, message, next_step=step)
        if stored.content:
            if _KEY.fullmatch(stored.content) is None:
                break
            return stored.content.decode()
        made = secrets.token_urlsafe(KEY_BYTES)
        if await store.replace(made.encode(), stored.version):
            return made
    message = "The Secret for the key of sign-ins holds something else."
    step = "Remove its entry: the gateway makes a new key, and users sign in anew."
    raise SandpodError(ErrorCode.BACKEND_ERROR, message, next_step=step)
