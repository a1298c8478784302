"""Tokens that stand for a caller in one sandbox, for clients that send one in place of their credential.

A token says which secret signed it, when it ends and which API key made it, with a message authentication code
(HMAC-SHA256) over these, the owner and the sandbox; nothing is stored, so any gateway checks it. The key is looked up
at each use: the token ends with it, and has its scopes as they are then. A caller who signed in elsewhere has no key
here, so that such a token says who that is, and ends with the credential that it was made for. All that a key gets for
a sandbox in a quarter of a day is one token, so that those which clients sign with can be found again.
"""

import base64
import hashlib
import hmac
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field, ValidationError

from sandpod_api.fields import DAY
from sandpod_gateway.api.strict_model import StrictModel
from sandpod_gateway.auth.callers import KEY_ID_BYTES, TOKEN_KEY_ID, Caller, Role
from sandpod_gateway.auth.current import CallerToken
from sandpod_gateway.auth.links import ID_BYTES, LinkKey, Links

MAX_SECONDS: Final = DAY  # a secret outlives its successor for as long
STEP_SECONDS: Final = DAY // 4  # between the ends of two tokens
MAX_TOKEN: Final = 2048  # characters
LEAST: Final = 32  # tokens that are tried: those of four keys, with two secrets in force
_PREFIX: Final = "sbt_"
_PURPOSE: Final = "sandpod sandbox token 1"  # so that no code of a link is ever one of these


_NOBODY: Final = Caller("", bytes(KEY_ID_BYTES))  # whose tokens are never valid


class _SignedIn(StrictModel):
    """Who has no key."""

    owner: Annotated[str, Field(max_length=512)]
    tenant: str
    role: Role

    def caller(self) -> Caller:
        return Caller(self.owner, TOKEN_KEY_ID, tenant=self.tenant, role=self.role)


class _Claims(StrictModel):
    signed_by: Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * ID_BYTES}}}$")]
    end: Annotated[int, Field(ge=0, le=2**40)]  # seconds since 1970
    key: Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * KEY_ID_BYTES}}}$")]
    signed_in: _SignedIn | None = None


@dataclass(frozen=True, slots=True)
class SandboxTokens:
    """Makes and checks tokens with the secrets of links."""

    links: Links
    caller_of_key: Callable[[bytes], Caller | None]  # by a key's id; None when the key is not valid
    keys_of_owner: Callable[[str], Sequence[tuple[Caller, int | None]]]  # their callers, and the ends of these keys

    def make(self, caller: Caller, sandbox: str, *, until: int | None) -> str:
        """Return a token for a sandbox of the caller's, valid for 18 hours or more, or `until` a time (Unix seconds).

        Raises SandpodError (backend_unavailable): there is no secret to sign with.
        """
        return _token(self.links.signing(), caller, sandbox, _end(self._newest_end(), until))

    def of(self, owner: str | None, sandbox: str) -> Iterator[str]:
        """Yield the tokens for a sandbox that its owner's keys may have got, and that are valid still.

        There are `LEAST` at least, the last ones of nobody: the time that all take tells nobody whether there is such a
        sandbox, nor how many keys its owner has.
        """
        now, newest, made = int(self.links.clock()), self._newest_end(), 0
        keys, ends = self.links.in_force(), range(newest, now, -STEP_SECONDS)
        for caller, until in () if owner is None else self.keys_of_owner(owner):
            for key, end in itertools.product(reversed(keys), {_end(end, until) for end in ends}):
                if end > now:
                    made += 1
                    yield _token(key, caller, sandbox, end)
        if keys:
            yield from (_token(keys[0], _NOBODY, sandbox, newest) for _ in range(made, LEAST))

    def _newest_end(self) -> int:
        return int(self.links.clock()) // STEP_SECONDS * STEP_SECONDS + MAX_SECONDS

    def check(self, token: str, sandbox: str) -> CallerToken | None:
        """Return for whom a token acts in a sandbox; None when it is not valid there, or not any more."""
        content, dot, code = token.removeprefix(_PREFIX).partition(".")
        if not (token.startswith(_PREFIX) and dot and token.isascii() and len(token) <= MAX_TOKEN):
            return None
        try:
            data = _decoded(content)
            claims, given = _Claims.model_validate_json(data), _decoded(code)
        except (ValueError, ValidationError):
            return None
        key = next((key for key in self.links.in_force() if key.id == claims.signed_by), None)
        key_id = bytes.fromhex(claims.key)
        if key_id == TOKEN_KEY_ID:
            caller = claims.signed_in.caller() if claims.signed_in is not None else None
        else:
            caller = self.caller_of_key(key_id)
        if key is None or caller is None or self.links.clock() >= claims.end:
            return None
        if not hmac.compare_digest(_code(key, data, caller.owner, sandbox), given):
            return None
        name = hashlib.sha256(token.encode()).hexdigest()  # never the credential itself
        return CallerToken(token=name, client_id=caller.owner, scopes=[], expires_at=claims.end, caller=caller)


def _end(end: int, until: int | None) -> int:
    return end if until is None else min(end, until)


def _token(key: LinkKey, caller: Caller, sandbox: str, end: int) -> str:
    who = None
    if caller.key_id == TOKEN_KEY_ID:
        who = _SignedIn(owner=caller.owner, tenant=caller.tenant, role=caller.role)
    claims = _Claims(signed_by=key.id, end=end, key=caller.key_id.hex(), signed_in=who)
    content = claims.model_dump_json(exclude_none=True).encode()
    return f"{_PREFIX}{_encoded(content)}.{_encoded(_code(key, content, caller.owner, sandbox))}"


def _code(key: LinkKey, content: bytes, owner: str, sandbox: str) -> bytes:
    # A JSON array of strings: no two different lists of parts read the same.
    message = json.dumps([_PURPOSE, content.decode(), owner, sandbox]).encode()
    return hmac.digest(bytes.fromhex(key.secret), message, hashlib.sha256)


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
