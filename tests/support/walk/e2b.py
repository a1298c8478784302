"""What a caller tries with another's things at each route of E2B's API, by ids in addresses, headers and bodies.

The routes are the server's own. One that is not known here fails the test: whoever adds one says what it may name.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from sandpod_gateway.e2b.envd.connect import envelope
from sandpod_gateway.e2b.hosts import PREFIX as E2B
from support.walk.recorded import Ask
from support.walk.rest import JSON, Pair, Route, Things
from support.walk.things import FILE as PATH
from support.walk.things import never


@dataclass(frozen=True)
class Asking:
    """A caller of E2B's API, with a sandbox of its own and the token for it."""

    sandbox: str
    token: str


@dataclass(frozen=True)
class Body:
    """What a route of E2B's takes, and which of its fields name something, by what that is."""

    fields: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    begins: bool = False
    ends: int = 0


_SELECTED: Final = {"pid": "process"}
CONTROL: Final[dict[Route, Body]] = {
    **{("GET", path): Body() for path in ("/sandboxes", "/v2/sandboxes")},
    **{("POST", path): Body({"timeout": 60}) for path in ("/sandboxes", "/v2/sandboxes")},
    ("GET", "/sandboxes/{sandbox}"): Body(),
    ("DELETE", "/sandboxes/{sandbox}"): Body(ends=9),
    ("GET", "/sandboxes/{sandbox}/metrics"): Body(),
    ("POST", "/sandboxes/{sandbox}/timeout"): Body({"timeout": 3000}),
    ("POST", "/sandboxes/{sandbox}/refreshes"): Body({"duration": 3000}),
    ("POST", "/sandboxes/{sandbox}/pause"): Body(),
    ("POST", "/sandboxes/{sandbox}/resume"): Body({"timeout": 3000}),
    ("POST", "/sandboxes/{sandbox}/connect"): Body({"timeout": 3000}),
    ("POST", "/v2/sandboxes/{sandbox}/connect"): Body({"timeout": 3000}),
}
_ONE: Final = "sandboxes/{sandbox}"
_NOT_HERE: Final = (
    *(f"{_ONE}/{each}" for each in ("fork", "snapshots", "network", "logs")),
    f"v2/{_ONE}/logs",
    *("snapshots", "templates", "v2/templates", "v3/templates", "volumes", "secrets"),
)
"""What is refused, whatever is named."""
INSIDE: Final[dict[Route, Body]] = {
    ("GET", "/health"): Body(),
    ("GET", "/files"): Body(),
    ("POST", "/files"): Body(),
    ("POST", "/execute"): Body({"code": "print(1)"}, {"context_id": "context"}),
    ("GET", "/contexts"): Body(),
    ("POST", "/contexts"): Body({"language": "python"}),
    ("DELETE", "/contexts/{context}"): Body(ends=2),
    ("POST", "/contexts/{context}/restart"): Body(ends=1),
    ("POST", "/process.Process/List"): Body(),
    ("POST", "/process.Process/SendInput"): Body({"input": {"stdin": "eA=="}}, _SELECTED),
    ("POST", "/process.Process/CloseStdin"): Body({}, _SELECTED, ends=1),
    ("POST", "/process.Process/SendSignal"): Body({"signal": "SIGNAL_SIGKILL"}, _SELECTED, ends=3),
    ("POST", "/process.Process/Update"): Body({"pty": {"size": {"cols": 80, "rows": 24}}}, {"pid": "pty"}),
    ("POST", "/process.Process/Start"): Body({"process": {"cmd": "echo", "args": ["1"]}}, begins=True),
    ("POST", "/process.Process/Connect"): Body({}, _SELECTED, begins=True),
    ("POST", "/process.Process/StreamInput"): Body({}, _SELECTED),
    ("POST", "/filesystem.Filesystem/Stat"): Body({"path": PATH}),
    ("POST", "/filesystem.Filesystem/MakeDir"): Body({"path": "made"}),
    ("POST", "/filesystem.Filesystem/Move"): Body({"source": PATH, "destination": "moved"}, ends=6),
    ("POST", "/filesystem.Filesystem/ListDir"): Body({"path": "."}),
    ("POST", "/filesystem.Filesystem/Remove"): Body({"path": PATH}, ends=7),
    ("POST", "/filesystem.Filesystem/CreateWatcher"): Body({"path": "."}),
    ("POST", "/filesystem.Filesystem/GetWatcherEvents"): Body({}, {"watcherId": "watcher"}),
    ("POST", "/filesystem.Filesystem/RemoveWatcher"): Body({}, {"watcherId": "watcher"}, ends=1),
    ("POST", "/filesystem.Filesystem/WatchDir"): Body({"path": "."}, begins=True),
}
STREAMED: Final = ("/Start", "/Connect", "/StreamInput", "/WatchDir")


def e2b_pairs(routes: Iterable[Route], methods: Iterable[str], things: Things, asking: Asking) -> Iterator[Pair]:
    """Return what to try with E2B's API, whose routes and methods of Connect RPC are these."""
    for route in routes:
        method, path = route
        if path == "/{service}/{method}":
            for each in methods:
                yield from _inside(("POST", f"/{each}"), things, asking)
        elif method == "HEAD":
            continue  # as GET
        elif is_refused(path):
            yield from _refused(route, things)
        elif route in CONTROL:
            yield from _control(route, CONTROL[route], things)
        else:
            yield from _inside(route, things, asking)


def is_refused(path: str) -> bool:
    """Return whether a path of E2B's is of what is not here."""
    return any(path.startswith(f"/{each}") for each in _NOT_HERE)


def _refused(route: Route, things: Things) -> Iterator[Pair]:
    method, path = route
    paths = [
        E2B + path.replace("{sandbox}", each).replace("{rest}", "/x")
        for each in (things["sandbox"], never(things["sandbox"]))
    ]
    yield Pair(route, "sandbox", [Ask(method, each) for each in paths])


def _control(route: Route, body: Body, things: Things) -> Iterator[Pair]:
    method, path = route
    content = json.dumps(body.fields).encode() if method == "POST" else b""
    if "{sandbox}" not in path:
        keys = [{"idempotency-key": each} if content else {} for each in (things["key"], never(things["key"]))]
        yield Pair(
            route, "key", [Ask(method, E2B + path, {**JSON, **key}, content) for key in keys], makes=method == "POST"
        )
        return
    for kind in ("sandbox", "name"):
        paths = [E2B + path.format(sandbox=each) for each in (things[kind], never(things[kind]))]
        yield Pair(route, kind, [Ask(method, each, JSON, content) for each in paths], ends=body.ends)


def _inside(route: Route, things: Things, asking: Asking) -> Iterator[Pair]:
    """Return what to try by the sandbox in the header, with a token of another one, and by each id in one's own."""
    body = INSIDE[route]
    values = {name: things[kind] for name, kind in body.names.items()}

    def ask(sandbox: str, values: Mapping[str, str], context: str) -> Ask:
        path = E2B + route[1].replace("{context}", quote(context))
        return _e2b_ask(route[0], path, Asking(sandbox, asking.token), {**body.fields, **_selected(values)})

    theirs = things["sandbox"]
    for each in (theirs, things["name"]):
        asks = [ask(name, values, things["context"]) for name in (each, never(each))]
        yield Pair(route, "sandbox in a header", asks, begins=body.begins, ends=body.ends)
    for name, value in values.items():
        asks = [ask(asking.sandbox, {**values, name: each}, things["context"]) for each in (value, never(value))]
        yield Pair(route, name, asks, begins=body.begins, ends=body.ends)
    if "{context}" in route[1]:
        asks = [ask(asking.sandbox, values, each) for each in (things["context"], never(things["context"]))]
        yield Pair(route, "context", asks, begins=body.begins, ends=body.ends)
    if route[1] == "/files":
        signed = f"path={PATH}&signature=v1_{'A' * 43}"
        asks = [_e2b_ask(route[0], E2B + "/files", Asking(each, ""), {}, signed) for each in (theirs, never(theirs))]
        yield Pair(route, "signature", asks, begins=body.begins, ends=body.ends)


def _selected(values: Mapping[str, str]) -> dict[str, Any]:
    """Return fields, with the process that a pid selects."""
    return {
        ("process" if name == "pid" else name): {"pid": int(value)} if name == "pid" else value
        for name, value in values.items()
    }


def _e2b_ask(method: str, path: str, asking: Asking, fields: dict[str, Any], query: str = "") -> Ask:
    headers = {"e2b-sandbox-id": asking.sandbox, **({"x-access-token": asking.token} if asking.token else {})}
    if path.endswith("/files"):
        path = f"{path}?{query or f'path={PATH}'}"
        headers["content-type"] = "application/octet-stream"
        return Ask(method, path, headers, b"theirs" if method == "POST" else b"")
    if not path.endswith(STREAMED):
        return Ask(method, path, {**headers, **JSON}, json.dumps(fields).encode() if method == "POST" else b"")
    content = envelope(fields)
    if path.endswith("/StreamInput"):
        content = envelope({"start": fields}) + envelope({"data": {"input": {"stdin": "eA=="}}})
    return Ask(method, path, {**headers, "content-type": "application/connect+json"}, content)
