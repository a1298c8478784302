"""What a caller tries with another's things at each operation of REST, by ids in addresses, headers and bodies.

The routes are the server's own. One that is not known here fails the test: whoever adds one says what it may name.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final
from urllib.parse import quote, urlencode

from sandpod_gateway.rest.files import METHODS
from sandpod_gateway.rest.operations import EVENTS, FILE, OPERATIONS, PREFIX, RUNS, STARTED, Operation
from sandpod_gateway.rest.terminal import TERMINAL
from support.walk.recorded import Ask
from support.walk.things import FILE as PATH
from support.walk.things import never, nowhere, tries

Things = Mapping[str, str]
Route = tuple[str, str]  # method and path

JSON: Final = {"content-type": "application/json"}
_PROGRAMS: Final = {"run_python_code": "python", "run_js_code": "javascript", "run_shell_command": "shell"}
_DEFAULTS: Final = {"sandbox": "default"}  # of a part of the path that a tool may leave out


@dataclass(frozen=True, eq=False)
class Pair:
    """A request that names another's thing, and the same with one that never existed; alike where nothing is named.

    Attributes:
        begins: The answer has no end of its own.
        makes: It makes something of the caller's own, with that name.
        admin: It is for administrators alone.
        ends: It ends what others need: those with more come later.
    """

    route: Route
    kind: str
    asks: Sequence[Ask]  # these two
    begins: bool = False
    makes: bool = False
    admin: bool = False
    ends: int = 0

    @property
    def theirs(self) -> Ask:
        """The one that names another's thing."""
        return self.asks[0]

    @property
    def none(self) -> Ask:
        """The other one."""
        return self.asks[1]

    def __str__(self) -> str:
        """Return what is said of it in a test."""
        return f"{self.route} by {self.kind}: {self.theirs}"


_ENDS: Final = {
    "rotate_key": 1,
    "restart_context": 2,
    "stop_run": 3,
    "revoke_key": 4,
    "delete_file": 5,
    "move_file": 6,
    "close_sandbox": 9,
    "close_any_sandbox": 10,
}


def _sent(operation: Operation, given: Mapping[str, Any], **headers: str) -> Ask:
    """Return the request that an operation's arguments make."""
    left = dict(given)
    parts = {name: quote(str(left.pop(name, _DEFAULTS.get(name))), safe="") for name in _parts(operation.path)}
    path = PREFIX + operation.path.format(**parts)
    if operation.has_body:
        return Ask(operation.method, path, {**JSON, **headers}, json.dumps(left).encode())
    query = {name: json.dumps(value) if isinstance(value, bool) else value for name, value in left.items()}
    return Ask(operation.method, f"{path}?{urlencode(query)}" if query else path, headers)


def _parts(path: str) -> list[str]:
    return [each.partition("}")[0] for each in path.split("{")[1:]]


def rest_pairs(tools: Mapping[str, Any], things: Things) -> Iterator[Pair]:
    """Return what to try with the REST API, whose tools are these by name."""
    for operation in (*OPERATIONS, STARTED):
        tool = tools[operation.tool]
        prefer = {"prefer": "respond-async"} if operation is STARTED else {}
        for each in tries(operation.tool, tool.parameters, things):
            yield Pair(
                (operation.method, operation.path),
                _kind(each.theirs, each.none),
                [_sent(operation, given, **prefer) for given in (each.theirs, each.none)],
                makes=operation.tool in {"create_sandbox", "create_key"},
                admin=tool.admin,
                ends=_ENDS.get(operation.tool, 0),
            )
    run = Operation("POST", RUNS, "")
    for name, language in _PROGRAMS.items():
        for each in tries(name, tools[name].parameters, things):
            sent = []
            for given in (each.theirs, each.none):
                code = {"code": given["command"]} if "command" in given else {}
                body = {key: value for key, value in given.items() if key != "command"}
                sent.append(_sent(run, {**body, **code, "language": language}))
            yield Pair(("POST", RUNS), _kind(each.theirs, each.none), sent)
    key = things["key"]
    code = {"code": "print(1)", "sandbox": things["sandbox"]}
    for prefer in ({}, {"prefer": "respond-async"}):
        headers = [{"idempotency-key": each, **prefer} for each in (key, never(key))]
        yield Pair(("POST", RUNS), "key in a header", [_sent(run, code, **each) for each in headers])
    create = next(each for each in OPERATIONS if each.tool == "create_sandbox")
    names = [{"idempotency-key": each} for each in (things["name"], never(things["name"]))]
    yield Pair(("POST", create.path), "key in a header", [_sent(create, {}, **each) for each in names], makes=True)
    yield from _rest_alone(things)


def _rest_alone(things: Things) -> Iterator[Pair]:
    """Return what to try with what has no tool."""
    for kind in ("sandbox", "name"):
        for method in METHODS:
            asks = [
                Ask(
                    method, PREFIX + FILE.format(sandbox=each, path=PATH), content=b"theirs" if method == "PUT" else b""
                )
                for each in (things[kind], never(things[kind]))
            ]
            yield Pair((method, FILE), kind, asks, ends=1 if method == "PUT" else 0)
        for socket in (True, False):
            paths = [PREFIX + TERMINAL.format(sandbox=each) for each in (things[kind], never(things[kind]))]
            yield Pair(("GET", TERMINAL), kind, [Ask("GET", path, socket=socket) for path in paths], begins=socket)
    terminal = things["terminal"]
    for sandbox, none in product(("default", things["sandbox"]), (never(terminal), nowhere(terminal))):
        asks = [
            Ask("GET", f"{PREFIX}{TERMINAL.format(sandbox=sandbox)}?terminal={each}", socket=True)
            for each in (terminal, none)
        ]
        yield Pair(("GET", TERMINAL), "terminal", asks, begins=True)
    for kind, unused in product(("run", "background"), (never, nowhere)):
        paths = [PREFIX + EVENTS.format(run_id=each) for each in (things[kind], unused(things[kind]))]
        for socket in (True, False):
            yield Pair(("GET", EVENTS), kind, [Ask("GET", path, socket=socket) for path in paths], begins=True)
    described = Ask("GET", f"{PREFIX}/openapi.json")
    yield Pair(("GET", "/openapi.json"), "nothing", [described] * 2)


def _kind(theirs: Mapping[str, Any], none: Mapping[str, Any]) -> str:
    return next((name for name, value in theirs.items() if none[name] != value), "nothing")
