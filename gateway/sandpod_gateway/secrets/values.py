"""Secrets as callers and templates give them: checked, and written where all gateways find them.

No error and no `repr` has a value in it, and neither has one a name that is not valid: it may be a value by mistake.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, NamedTuple, Protocol, Self

from pydantic import Field, ValidationError

from sandpod_api.templates import LANGUAGE_NAME, MAX_SECRETS, SECRET_NAME, SecretKey, SecretObjectName, is_reserved
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.strict_model import StrictModel
from sandpod_gateway.errors import SandpodError

MIN_VALUE: Final = 8  # bytes; masking a shorter one would garble output that has nothing to do with it
MIN_DISTINCT: Final = 4  # different characters, as above
MAX_VALUE: Final = 4 * 1024  # bytes; a private key has about 3 kB in PEM
MAX_VALUES: Final = 8 * 1024
"""Bytes of all values of a session, and of a template: to prepare their forms takes about 20 ms."""

_ToolName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
_LanguageName = Annotated[str, Field(pattern=LANGUAGE_NAME)]


class Reference(NamedTuple):
    """An entry of a Secret."""

    secret: str
    key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Secret:
    """A variable for programs whose value is hidden, unless it is not `masked`."""

    name: str
    value: str = field(default="", repr=False)
    tools: frozenset[str] = frozenset()  # whose runs get it; empty means all
    languages: frozenset[str] = frozenset()  # as above
    problem: str = ""  # why it can't be used, as the end of a sentence
    reference: Reference | None = None  # where the value is, of one that is not given itself
    masked: bool = True

    @classmethod
    def limited(cls, name: str, tools: Iterable[str], languages: Iterable[str], value: str = "") -> Self:
        """Return a secret for runs of some tools in some languages."""
        return cls(name=name, value=value, tools=frozenset(tools), languages=frozenset(languages))

    def is_for(self, tool: str, language: str) -> bool:
        """Return whether a run of that tool in that language gets it."""
        return (not self.tools or tool in self.tools) and (not self.languages or language in self.languages)


class SecretSource(Protocol):
    """Where all gateways over the same sandboxes find the secrets of these. All raise backend_unavailable."""

    async def of_session(self, sandbox: str) -> tuple[Secret, ...]:
        """Return what was given with a sandbox when it was claimed. Raises backend_unavailable too if it is gone."""

    async def of_claim(self, sandbox: str) -> tuple[Secret, ...]:
        """Return the secrets that a sandbox's claim refers to, with a problem where the owner may not have one."""

    async def of_template(self, template: str) -> tuple[Secret, ...] | None:
        """Return a template's secrets, with a problem where a reference leads nowhere; None without the template."""


class _Given(StrictModel):
    value: Annotated[str | None, Field(repr=False)] = None
    secret: SecretObjectName | None = None
    key: SecretKey | None = None
    tools: Annotated[list[_ToolName], Field(max_length=16)] = Field(default_factory=list)
    languages: Annotated[list[_LanguageName], Field(max_length=16)] = Field(default_factory=list)


_FORMS: Final = (
    'Give a text, {"value": "..."} or {"secret": "NAME", "key": "KEY"}; "tools": [...] and "languages": [...] limit it.'
)


def parse_secrets(
    given: Mapping[Any, Any], tools: Iterable[str], other_names: Mapping[str, str], *, masked: bool = True
) -> tuple[Secret, ...]:
    """Return what a call gives: each name with its value, or with `value` or `secret` and `key`, `tools`, `languages`.

    `tools` are those that run something, and `other_names` are what languages are called as well.
    Raises SandpodError: invalid_argument.
    """
    if len(given) > MAX_SECRETS:
        raise _refusal(f"There are over {MAX_SECRETS} secrets.", "Give fewer.")
    secrets = tuple(_parsed(name, value, other_names, masked=masked) for name, value in given.items())
    known = sorted(tools)
    if any(not secret.tools <= set(known) for secret in secrets):
        raise _refusal("`tools` of a secret names a tool that runs nothing.", f"Use some of: {', '.join(known)}.")
    if sum(len(secret.value.encode()) for secret in secrets) > MAX_VALUES:
        raise _refusal(f"All secrets together have over {MAX_VALUES} bytes.", "Put large data into files.")
    return secrets


def _parsed(name: Any, given: Any, other_names: Mapping[str, str], *, masked: bool) -> Secret:
    if not isinstance(name, str) or SECRET_NAME.fullmatch(name) is None:
        step = "Use a name such as API_TOKEN, of letters, digits and underscores; the value stands after it."
        raise _refusal("A secret's name is not that of an environment variable.", step)
    if is_reserved(name):
        raise _refusal(f"The name {name} is reserved.", "Use another one, such as API_TOKEN.")
    try:
        parsed = _Given.model_validate({"value": given} if isinstance(given, str) else given)
    except ValidationError as error:
        where = error.errors(include_url=False, include_input=False)[0]["loc"][:1]
        field_name = where[0] if where and where[0] in _Given.model_fields else "it"
        message = f"The secret {name} is wrong: {field_name} is missing, unknown or of another form."
        raise _refusal(message, _FORMS) from None
    languages = frozenset(other_names.get(language, language) for language in parsed.languages)
    secret = replace(Secret.limited(name, parsed.tools, languages, parsed.value or ""), masked=masked)
    if parsed.secret is not None and parsed.key is not None and parsed.value is None:
        return replace(secret, reference=Reference(parsed.secret, parsed.key))
    if parsed.value is None or parsed.secret is not None or parsed.key is not None:
        raise _refusal(f"The secret {name} needs either a value, or a Secret and its key.", _FORMS)
    if problem := value_problem(parsed.value, masked=masked):
        raise _refusal(f"The value of secret {name} {problem}.", "Correct it, or pass what is no secret as `env`.")
    return secret


def value_problem(value: str, *, masked: bool = True) -> str:
    """Return why a value can't be used, or `masked`, as the end of a sentence; empty if it can."""
    try:
        shown, size = value.strip().encode(), len(value.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode text"
    if "\0" in value:
        return "has a NUL character in it"
    if size > MAX_VALUE:
        return f"has over {MAX_VALUE} bytes"
    few = (
        f"fewer than {MIN_VALUE} bytes" if len(shown) < MIN_VALUE else f"fewer than {MIN_DISTINCT} different characters"
    )
    short = len(shown) < MIN_VALUE or len(set(shown)) < MIN_DISTINCT
    return f"has {few}: to mask it would garble other output" if masked and short else ""


def resolved(secret: Secret, data: bytes | None) -> Secret:
    """Return a secret that refers to its value with that value, or with the reason why there is none."""
    if data is None:
        return replace(secret, problem="is not there")
    try:
        value = data.decode()
    except UnicodeDecodeError:
        return replace(secret, problem="is not text")
    value = value.rstrip("\r\n")  # what an editor adds
    problem = value_problem(value)
    return replace(secret, problem=problem) if problem else replace(secret, value=value)


def bounded(secrets: Iterable[Secret]) -> tuple[Secret, ...]:
    """Return secrets that refer to their values; those for which there is no room have that as their problem."""
    kept, size = [], 0
    for secret in secrets:
        size += len(secret.value.encode())
        problem = f"is too large: all of them together have over {MAX_VALUES} bytes"
        kept.append(secret if size <= MAX_VALUES else replace(secret, value="", problem=problem))
    return tuple(kept)


def dump(secrets: Iterable[Secret]) -> bytes:
    """Return secrets as `load` reads them, the same bytes for the same secrets."""
    entries = {
        each.name: {
            "value": each.value,
            "tools": sorted(each.tools),
            "languages": sorted(each.languages),
            **({} if each.masked else {"masked": False}),
        }
        for each in secrets
    }
    return json.dumps(entries, sort_keys=True).encode()


def load(data: bytes) -> tuple[Secret, ...]:
    """Return the secrets that `dump` has written. Raises ValueError, without what is there."""
    try:
        entries: dict[str, dict[str, Any]] = json.loads(data)
        return tuple(
            replace(
                Secret.limited(name, each["tools"], each["languages"], str(each["value"])),
                masked=each.get("masked") is not False,
            )
            for name, each in entries.items()
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError("no secrets") from None


def _refusal(message: str, next_step: str) -> SandpodError:
    return SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=next_step)
