"""What a caller tries with another's things, made from a server's own lists of tools, resources and routes.

A parameter that is not known here fails the test of its tool: whoever adds one says what it may name.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

NAME: Final = "telnet"  # of the victim's sandbox: connections of chrishayuk's telnet tools are made from that
TELNET: Final = "0123456789abcdef"
CONTEXT: Final = f"telnet {TELNET} 23 host"  # of such a connection
KEY: Final = "the-key-of-a-run"
SECRET: Final = "what nobody else may know"
FILE: Final = "secret.txt"

# What never existed, in the form of each thing.
NEVER: Final = {
    NAME: "nobody",
    TELNET: "f" * 16,
    CONTEXT: f"telnet {'f' * 16} 23 host",
    KEY: "another-key",
    "alice": "nobody",
    "a": "none",
}
_HEX: Final = re.compile(r"(?:(?<=-)|^)[0-9a-f]{12,}$|^\d+$")

# Parameters that name something of a caller's, by what they may name.
_OF_A_CALLER: Final = {
    "sandbox": ("sandbox",),
    "sandbox_id": ("sandbox", "name"),
    "session_id": ("name", "sandbox", "telnet"),
    "name": ("name",),
    "run_id": ("run", "background"),
    "since": ("run",),
    "installation": ("installation",),
    "context": ("context",),
    "idempotency_key": ("key",),
    "key_id": ("key_id",),
    "user": ("user",),
    "tenant": ("tenant",),
}
# All others, with a value for each.
_OTHERS: Final[dict[str, Any]] = {
    **dict.fromkeys(("path", "file_path", "artifact", "source"), FILE),
    **dict.fromkeys(("filename", "file_name", "destination", "dest_path", "destination_path"), "theirs.txt"),
    **dict.fromkeys(("text", "content", "file_content", "stdin"), "theirs"),
    **dict.fromkeys(("code", "command"), "print(1)"),
    **dict.fromkeys(("title", "x_label", "y_label", "save_path", "cmap", "local_file_path", "host", "cwd"), "x"),
    **dict.fromkeys(("x_key", "y_key", "category_key", "color_key", "size_key"), "x"),
    **{name: ["x"] for name in ("y_keys", "value_keys", "row_labels", "col_labels")},
    **dict.fromkeys(("timeout", "wait", "cursor", "offset", "limit", "max_output", "expires", "port"), 1),
    **dict.fromkeys(("recursive", "overwrite", "fresh", "cold_start", "strip_ansi", "force"), False),
    **dict.fromkeys(("args", "env", "lifetime", "workspace", "template", "network", "until", "format", "method"), None),
    **dict.fromkeys(("encoding", "orientation", "language"), None),
    **dict.fromkeys(("days", "tools", "templates", "read_only", "role", "grace", "event", "by", "key"), None),
    "seconds": 60,
    "pool": "default",
    "replicas": 1,
    "packages": ["attrs"],
    "secrets": None,
    "package_name": "attrs",
    "content_base64": "dGhlaXJz",
    "data": [{"x": 1}],
    "chart_type": "line",
}
_OWN_VALUES: Final = {("generate_heatmap", "data"): [[1.0]]}
_NAMES_NOTHING: Final = {("get_usage", "since"), ("create_key", "name")}  # of a caller's, whatever it is elsewhere
MAKES: Final = frozenset({"connect", "create_sandbox", "sandbox_run_python", "sandbox_upload_file"})
"""Tools that make a sandbox of the caller's own where it has none of that name."""


def never(thing: str) -> str:
    """Return what has the form of a thing, and never existed."""
    unused = "2" if thing.isdecimal() else "1"
    return NEVER.get(thing) or _HEX.sub(lambda match: unused * len(match[0]), thing)


def nowhere(thing: str) -> str:
    """Return what has the form of a thing in a sandbox that never existed either."""
    return re.sub(r"(?<=-)[0-9a-f]{12,}", lambda match: "1" * len(match[0]), never(thing))


@dataclass(frozen=True, eq=False)
class Try:
    """A call with another's thing, and the same call with one that never existed; alike where nothing is named."""

    tool: str
    theirs: dict[str, Any]
    none: dict[str, Any]


def tries(tool: str, schema: dict[str, Any], things: Mapping[str, str]) -> Iterator[Try]:
    """Return what to try with a tool, whose arguments are of this schema, and what its victim has."""
    required = schema.get("required", [])
    harmless = {name for of, name in _NAMES_NOTHING if of == tool}
    named = [name for name in schema["properties"] if name in _OF_A_CALLER and name not in harmless]
    unknown = schema["properties"].keys() - _OF_A_CALLER.keys() - _OTHERS.keys()
    assert not unknown, f"{tool} has {unknown}: say in {__name__} whether they name something of a caller's"
    given = [name for name in schema["properties"] if name in _OTHERS and (name in required or name == "text")]
    own = {name: _OWN_VALUES.get((tool, name), _OTHERS[name]) for name in given}
    own |= {name: "x" for name in harmless if name in required}
    rest = {name: things[_OF_A_CALLER[name][0]] for name in required if name in named}
    for name in named:
        for kind in _OF_A_CALLER[name]:
            theirs = {**own, **rest, name: things[kind]}
            for none in sorted({never(things[kind]), nowhere(things[kind])} - {things[kind]}):
                yield Try(tool, theirs, {**theirs, name: none})
    if not named:
        yield Try(tool, own, own)


_CHANGES: Final = (
    r"(?:[a-z]+\.)?sbx-[0-9a-f]{12}(?:\.run-[0-9a-f]{16})?|inst-[0-9a-f]{16}|run_\w{16,}|sess_[0-9a-f]{12}",
    r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|\+00:00)",
    r"(?<=token=)[A-Za-z0-9_-]{43}|sandpod_[\w-]{20,}|sbt_[\w.-]+|(?<=timestamp\W{3})\d+|(?<=key_id\W{3})[0-9a-f]{16}",
    r"(?<=nonce-)[\w-]+|(?<=nonce=\W)[\w-]+|\bknown=\w+",
    r"(?<=_seconds)\W+[\d.e-]+|(?<=_ms)\W+[\d.e-]+|(?<=_rss_bytes)\W+\d+|(?<=end_time)\W+[\d.e-]+",
)
_NONZERO: Final = r',\\"\w+_(?:seconds|ms)\\":[\d.e-]+'  # in a result's text, where a time of zero is left out


def blank(text: str, things: Iterable[str]) -> str:
    """Return a text without these things and what differs between any two answers: ids, times, durations."""
    for each in sorted({*things, *map(never, things), *map(nowhere, things)}, key=len, reverse=True):
        text = text.replace(each, "…")
    return re.sub("|".join(_CHANGES), "…", re.sub(_NONZERO, "", text))
