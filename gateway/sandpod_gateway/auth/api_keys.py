"""API keys as they are stored: hashed, in one YAML document, which is a file or an entry of a Secret.

A key is shown once, when it is made; nothing keeps it, and nothing logs it.
"""

import hashlib
import secrets
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

import yaml
from pydantic import AwareDatetime, Field

from sandpod_api.fields import Name
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.strict_model import StrictModel
from sandpod_gateway.api.toolsets import ALL, ToolsetName, expanded
from sandpod_gateway.auth.callers import KEY_ID_BYTES, Caller, Role, owner_of
from sandpod_gateway.errors import StartError

KEY_PREFIX: Final = "sandpod_"  # secret scanners and people recognize it
KEY_BYTES: Final = 32  # 256 random bits: one round of SHA-256 is enough, there is nothing to guess
MAX_FILE: Final = 1024 * 1024  # bytes; Kubernetes bounds a Secret at the same size
MAX_KEYS: Final = 10_000

# libyaml, where PyYAML has it, takes a tenth of the time: 0.3 s for the largest file.
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Final[Any] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class KeyEntry(StrictModel):
    """One key as it is stored."""

    name: Annotated[str, Field(min_length=1, max_length=128)]  # what the key is for
    user: Annotated[str, Field(min_length=1, max_length=128)]  # whose it is; sandboxes belong to users
    hash: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]  # SHA-256 of the key
    created: AwareDatetime
    expires: AwareDatetime | None = None
    tools: Annotated[list[ToolsetName] | None, Field(min_length=1)] = None  # toolsets that it may use; None for all
    templates: Annotated[list[Name] | None, Field(min_length=1, max_length=100)] = None  # the default first; None: all
    read_only: bool = False  # whether it may use only tools that change nothing
    tenant: Name | None = None  # whose sandboxes are apart from those of other tenants; None for the default one
    role: Role = "user"

    @property
    def id(self) -> str:
        """What names the key without giving it away."""
        return key_id(self.hash).hex()

    def is_valid(self, now: datetime) -> bool:
        """Return whether it has not expired."""
        return self.expires is None or now < self.expires

    def caller(self) -> Caller:
        """Return whom it stands for."""
        tools = ALL if self.tools is None else expanded(self.tools)
        templates = None if self.templates is None else tuple(self.templates)
        return Caller(
            owner_of(self.tenant or "", self.user),
            key_id(self.hash),
            tools,
            templates,
            self.read_only,
            tenant=self.tenant or "",
            role=self.role,
            key=self.name,
        )


class KeyFile(StrictModel):
    """All keys of a server."""

    keys: Annotated[list[KeyEntry], Field(max_length=MAX_KEYS)] = Field(default_factory=list)

    def dump(self) -> bytes:
        """Return it as it is stored."""
        text = yaml.dump(self.model_dump(mode="json", exclude_defaults=True), Dumper=_DUMPER, sort_keys=False)
        if len(text) > MAX_FILE:
            step = "Revoke keys that have expired."
            raise StartError(ErrorCode.INVALID_CONTENT, "There are too many keys for one file.", next_step=step)
        return text.encode()

    def without(self, revoked: Collection[str]) -> "KeyFile":
        """Return the keys but for those of these ids."""
        return KeyFile(keys=[entry for entry in self.keys if entry.id not in revoked])

    def rotated(self, old: KeyEntry, new: KeyEntry, end: datetime) -> "KeyFile":
        """Return the keys with a successor of one, which is valid until `end` at the most."""
        expires = end if old.expires is None else min(end, old.expires)
        ending = old.model_copy(update={"expires": expires})
        return KeyFile(keys=[*(ending if entry.id == old.id else entry for entry in self.keys), new])


def hash_key(key: str) -> str:
    """Return a key in the form in which it is stored."""
    return "sha256:" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def key_id(stored: str) -> bytes:
    """Return the short id of a key, from the form in which it is stored."""
    return bytes.fromhex(stored.removeprefix("sha256:"))[:KEY_ID_BYTES]


def make_key(*, user: str, name: str, days: int | None, now: datetime, **scopes: object) -> tuple[str, KeyEntry]:
    """Return a new key, which nothing keeps, and its entry: it expires after so many days, if at all.

    `scopes` are the entry's `tools`, `templates`, `read_only`, `tenant` and `role`. Raises pydantic.ValidationError: a
    field is wrong.
    """
    key = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
    created = now.replace(microsecond=0)
    expires = created + timedelta(days=days) if days is not None else None
    entry = {"name": name, "user": user, "hash": hash_key(key), "created": created, "expires": expires}
    return key, KeyEntry.model_validate(entry | scopes)


def parse_keys(raw: bytes, what: str) -> KeyFile:
    """Return the keys that a document holds. Raises StartError: it is none; says nothing of its content."""
    if len(raw) > MAX_FILE:
        step = "Remove expired keys."
        raise StartError(ErrorCode.INVALID_CONTENT, f"{what} is too large for a key file.", next_step=step)
    try:
        document = yaml.load(raw, Loader=_LOADER)  # noqa: S506 - a safe one
        return KeyFile.model_validate({} if document is None else document)
    except Exception as error:
        # PyYAML raises what its constructors run into: ValueError for a day that is none, KeyError for `!!bool x`.
        step = "Each entry is what `sandpod keys create --print` prints."
        raise StartError(ErrorCode.INVALID_CONTENT, f"{what} is not a key file.", next_step=step) from error
