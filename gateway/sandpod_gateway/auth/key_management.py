"""Makes, rotates and revokes API keys: what `sandpod keys` and the REST API do to them, and who may do that."""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from pydantic import ValidationError

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.toolsets import ALL, expanded
from sandpod_gateway.auth.api_keys import MAX_KEYS, KeyEntry, KeyFile, make_key
from sandpod_gateway.auth.callers import Caller, owner_of
from sandpod_gateway.auth.key_source import KeySource
from sandpod_gateway.errors import SandpodError, StartError

logger = logging.getLogger(__name__)

MAX_DAYS: Final = 36_500
MAX_GRACE: Final = 24 * 365  # hours
GRACE_HOURS: Final = 24
MAX_PER_USER: Final = 100  # valid keys, where a caller makes them: all users' share one file
_LOOK: Final = "List the keys to see those that there are."


class NewKey(NamedTuple):
    """A key, which nothing keeps, and its entry."""

    key: str
    entry: KeyEntry


def new_key(user: str, name: str, days: int | None, scopes: Mapping[str, object]) -> NewKey:
    """Return a new key, which expires after so many days, if at all. Raises SandpodError: invalid_argument."""
    if days is not None and not 1 <= days <= MAX_DAYS:
        raise _wrong(f"days is 1 to {MAX_DAYS}.", "Correct it.")
    try:
        return NewKey(*make_key(user=user, name=name, days=days, now=datetime.now(UTC), **scopes))
    except ValidationError as error:
        message = (
            "User and name have 1 to 128 characters, and tenant and templates small letters, digits and hyphens: a "
            "tenant's name is in the server's settings, and templates are names of SandboxTemplates."
        )
        raise _wrong(message, "Correct them.") from error


def found(keys: KeyFile, ids: Collection[str]) -> list[KeyEntry]:
    """Return the keys of these ids. Raises SandpodError (not_found): there is no such key."""
    entries = [entry for entry in keys.keys if entry.id in ids]
    if missing := sorted(set(ids) - {entry.id for entry in entries}):
        message = f"There is no key {', '.join(missing)[:100]}."
        raise SandpodError(ErrorCode.NOT_FOUND, message, next_step=_LOOK)
    return entries


def successor(old: KeyEntry, days: int | None) -> NewKey:
    """Return a new key like another, for so many days, or as long as that one. Raises invalid_argument."""
    if days is None and not old.is_valid(datetime.now(UTC)):
        raise _wrong(f"The key {old.id} has expired.", "Say for how many days the new one is to work.")
    key, fresh = new_key(old.user, old.name, days, {})
    expires = old.expires if days is None else fresh.expires
    own = {"hash": fresh.hash, "created": fresh.created, "expires": expires}
    return NewKey(key, old.model_copy(update=own))


def grace_end(hours: int) -> datetime:
    """Return when a key ends that was rotated just now. Raises SandpodError: invalid_argument."""
    if not 0 <= hours <= MAX_GRACE:
        raise _wrong(f"grace is 0 to {MAX_GRACE} hours.", "Correct it.")
    return datetime.now(UTC) + timedelta(hours=hours)


@dataclass(frozen=True, slots=True)
class Credential:
    """What somebody calls with, and until when a key that is made with it may be valid."""

    caller: Caller
    expires: datetime | None


@dataclass(frozen=True, slots=True)
class KeyManager:
    """Keys for callers: each user's own for users, and for administrators those of their tenant, or of all tenants.

    `use` accepts the keys that a change leaves; all methods raise SandpodError as the source does.
    """

    source: KeySource | None  # None: this server has no keys
    changes: bool  # whether callers may change keys
    known: Callable[[], list[KeyEntry]]  # those that are in use
    use: Callable[[KeyFile], None]

    def visible(self, caller: Caller) -> list[KeyEntry]:
        """Return the keys that a caller may see, as they are in use here. Raises SandpodError: not_found."""
        self._source()
        return [entry for entry in self.known() if _may_see(caller, entry)]

    async def create(self, by: Credential, fresh: NewKey) -> KeyEntry:
        """Add a key, with no more rights than it is made with. Raises forbidden, invalid_argument, quota_exceeded."""
        entry = _bounded(fresh.entry, by)
        if not _may_see(by.caller, entry):
            message, step = (
                "You may make no keys of that user.",
                "Leave user and tenant out, or ask the administrator.",
            )
            raise SandpodError(ErrorCode.FORBIDDEN, message, next_step=step)
        _check_rights(entry, by)

        def change(keys: KeyFile) -> KeyFile:
            now, theirs = datetime.now(UTC), _check_room(keys, entry)
            if any(each.name == entry.name and each.is_valid(now) for each in theirs):
                raise _wrong("The user has a key of that name.", "Choose another name, or rotate or revoke that key.")
            return KeyFile(keys=[*keys.keys, entry])

        await self._change(change)
        return entry

    async def rotate(self, by: Credential, wanted: str, days: int | None, hours: int) -> NewKey:
        """Add a key like another, which then ends. Raises not_found, forbidden, invalid_argument, quota_exceeded."""
        end, made = grace_end(hours), list[NewKey]()

        def change(keys: KeyFile) -> KeyFile:
            old = _seen(keys, by.caller, wanted)
            key, entry = successor(old, days)
            if days is None and by.expires is not None:
                entry = entry.model_copy(update={"expires": min(entry.expires or by.expires, by.expires)})
            _check_rights(entry, by)
            _check_room(keys, entry)
            made[:] = [NewKey(key, entry)]
            return keys.rotated(old, entry, end)

        await self._change(change)
        return made[0]

    async def revoke(self, caller: Caller, wanted: str) -> KeyEntry:
        """Remove a key. Raises not_found."""
        removed: list[KeyEntry] = []

        def change(keys: KeyFile) -> KeyFile:
            removed[:] = [_seen(keys, caller, wanted)]
            return keys.without({wanted})

        await self._change(change)
        return removed[0]

    async def _change(self, change: Callable[[KeyFile], KeyFile]) -> None:
        source = self._source()
        if not self.changes:
            message = "This server's keys are not changed by its callers."
            step = "Ask the administrator, who has `sandpod keys` and the setting auth.change_keys."
            raise SandpodError(ErrorCode.FORBIDDEN, message, next_step=step)
        try:
            self.use(await source.change(change))
        except StartError as error:
            # Its words name the file or Secret, which is the administrator's to know.
            logger.warning("the keys can't be changed: %s", error)
            step = "Tell the administrator: the server's log says why."
            raise SandpodError(error.code, "The server's keys can't be changed.", next_step=step) from error

    def _source(self) -> KeySource:
        if self.source is None:
            message = "This server has no API keys."
            step = "Ask the administrator: auth.keys_file or kubernetes.keys_secret names the place for them."
            raise SandpodError(ErrorCode.NOT_FOUND, message, next_step=step)
        return self.source


def _bounded(entry: KeyEntry, by: Credential) -> KeyEntry:
    """Return a key where what it leaves open has the bounds of the credential that it is made with."""
    caller, update = by.caller, dict[str, object]()
    if entry.tools is None and caller.tools != ALL:
        update["tools"] = sorted(caller.tools)
    if entry.templates is None and caller.templates is not None:
        update["templates"] = list(caller.templates)
    if by.expires is not None and entry.expires is None:
        update["expires"] = by.expires
    return entry.model_copy(update=update)


def _check_rights(entry: KeyEntry, by: Credential) -> None:
    """Raise forbidden where a key may do more than the credential that it is made with."""
    caller, tools = by.caller, ALL if entry.tools is None else expanded(entry.tools)
    more = [
        ("toolsets", not tools <= caller.tools),
        ("templates", caller.templates is not None and not {*(entry.templates or [""])} <= {*caller.templates}),
        ("changes", caller.read_only and not entry.read_only),
        ("role", entry.role == "admin" and caller.role != "admin"),
        ("time", by.expires is not None and (entry.expires is None or entry.expires > by.expires)),
    ]
    if words := [what for what, is_more in more if is_more]:
        message = f"The key would have more rights than what you call with: {', '.join(words)}."
        step = "Ask for less, or call with a key that has more."
        raise SandpodError(ErrorCode.FORBIDDEN, message, next_step=step)


def _check_room(keys: KeyFile, entry: KeyEntry) -> list[KeyEntry]:
    """Return the keys of a key's user, which are few enough for another one. Raises quota_exceeded: they are not."""
    theirs = [each for each in keys.keys if _owner(each) == _owner(entry)]
    if len(theirs) >= MAX_PER_USER or len(keys.keys) >= MAX_KEYS:
        whose, most = ("user", MAX_PER_USER) if len(theirs) >= MAX_PER_USER else ("server", MAX_KEYS)
        message = f"The {whose} has {most} keys, expired ones among them, the most that there may be."
        raise SandpodError(ErrorCode.QUOTA_EXCEEDED, message, next_step="Revoke one that is not needed.")
    return theirs


def _seen(keys: KeyFile, caller: Caller, wanted: str) -> KeyEntry:
    return found(KeyFile(keys=[entry for entry in keys.keys if _may_see(caller, entry)]), {wanted})[0]


def _may_see(caller: Caller, entry: KeyEntry) -> bool:
    if caller.role == "admin" and caller.tenant in {"", entry.tenant}:
        return True
    return _owner(entry) == caller.owner


def _owner(entry: KeyEntry) -> str:
    return owner_of(entry.tenant or "", entry.user)


def _wrong(message: str, step: str) -> SandpodError:
    return SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=step)
