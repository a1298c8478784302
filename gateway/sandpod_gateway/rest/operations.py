"""Which tool answers at which address, and what a request says of its arguments. Pure."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.service import MAX_ENTRIES
from sandpod_gateway.runs.request import OTHER_NAMES

PREFIX: Final = "/api/v1"
RUNS: Final = "/runs"
EVENTS: Final = "/runs/{run_id}/events"
FILE: Final = "/sandboxes/{sandbox}/files/{path}"


@dataclass(frozen=True, slots=True)
class Listing:
    """A result that is a list, and is given in pages."""

    field: str  # of the result, with the entries
    order: tuple[
        str, ...
    ] = ()  # fields of an entry that name it, and by which they are ordered; none: the tool's pages
    tool_limit: int | None = None  # of a tool that has such an argument: the most entries
    csv: bool = False  # whether it is to be had as CSV, too; the result then has `columns`


@dataclass(frozen=True, slots=True)
class Operation:
    """A tool's address.

    Parts of the path are arguments; POST and PATCH have the others as a JSON object, the rest as a query.
    """

    method: str
    path: str  # below PREFIX
    tool: str
    status: HTTPStatus = HTTPStatus.OK
    location: str | None = None  # where what was made is, with fields of the result
    listing: Listing | None = None

    @property
    def has_body(self) -> bool:
        """Whether its arguments are in a body."""
        return self.method in {"POST", "PATCH"}


OPERATIONS: Final = (
    Operation("GET", "/sandboxes", "list_sandboxes", listing=Listing("sandboxes", ("created_at", "sandbox"))),
    Operation("POST", "/sandboxes", "create_sandbox", HTTPStatus.CREATED, "/sandboxes/{sandbox}"),
    Operation("GET", "/sandboxes/{sandbox}", "get_sandbox"),
    Operation("DELETE", "/sandboxes/{sandbox}", "close_sandbox"),
    Operation("GET", "/sandboxes/{sandbox}/state", "describe_sandbox"),
    Operation("POST", "/sandboxes/{sandbox}/extend", "extend_sandbox"),
    Operation("POST", "/sandboxes/{sandbox}/suspend", "suspend_sandbox"),
    Operation("POST", "/sandboxes/{sandbox}/resume", "resume_sandbox"),
    Operation("GET", "/sandboxes/{sandbox}/runs", "list_runs", listing=Listing("runs", ("started_at", "run_id"))),
    Operation("GET", "/sandboxes/{sandbox}/contexts", "list_contexts", listing=Listing("contexts", ("name",))),
    Operation("DELETE", "/sandboxes/{sandbox}/contexts/{context}", "restart_context"),
    Operation("GET", "/sandboxes/{sandbox}/files", "list_files", listing=Listing("entries", ("path",), MAX_ENTRIES)),
    Operation("DELETE", FILE, "delete_file"),
    Operation("POST", "/sandboxes/{sandbox}/folders", "make_directory"),
    Operation("POST", "/sandboxes/{sandbox}/moves", "move_file"),
    Operation("GET", "/sandboxes/{sandbox}/artifacts", "list_artifacts", listing=Listing("artifacts", ("path",))),
    Operation(
        "GET",
        "/sandboxes/{sandbox}/packages",
        "list_packages",
        listing=Listing("packages", ("name", "source", "version")),
    ),
    Operation("POST", "/sandboxes/{sandbox}/packages", "install_packages"),
    Operation("POST", "/sandboxes/{sandbox}/links", "create_link", HTTPStatus.CREATED),
    Operation("POST", "/sandboxes/{sandbox}/archives", "fetch_workspace", HTTPStatus.CREATED),
    Operation("GET", "/templates", "list_templates", listing=Listing("templates", ("template",))),
    Operation("GET", "/activity", "list_activity", listing=Listing("sandboxes", ("sandbox",))),
    Operation("GET", "/runs/{run_id}", "read_run"),
    Operation("DELETE", "/runs/{run_id}", "stop_run"),
    Operation("GET", "/installations/{installation}", "get_installation"),
    Operation("GET", "/keys", "list_keys", listing=Listing("keys", ("created_at", "key_id"))),
    Operation("POST", "/keys", "create_key", HTTPStatus.CREATED),
    Operation("DELETE", "/keys/{key_id}", "revoke_key"),
    Operation("POST", "/keys/{key_id}/rotate", "rotate_key", HTTPStatus.CREATED),
    Operation("GET", "/usage", "get_usage", listing=Listing("rows", csv=True)),
    Operation("GET", "/pools", "list_pools", listing=Listing("pools", ("pool",))),
    Operation("PATCH", "/pools/{pool}", "scale_pool"),
    Operation("GET", "/admin/sandboxes", "list_all_sandboxes", listing=Listing("sandboxes", ("created_at", "sandbox"))),
    Operation("GET", "/admin/sandboxes/{sandbox}", "describe_any_sandbox"),
    Operation("DELETE", "/admin/sandboxes/{sandbox}", "close_any_sandbox"),
    Operation("GET", "/audit", "list_audit_records", listing=Listing("records")),
)
STARTED: Final = Operation("POST", RUNS, "start_run", HTTPStatus.ACCEPTED, "/runs/{run_id}")
"""Where a request prefers not to wait (RFC 7240, `Prefer: respond-async`); else the run's result is the answer."""

_PROGRAMS: Final = {"python": "run_python_code", "javascript": "run_js_code"}


def program(body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the tool that runs what a request describes and answers with its result, and the tool's arguments.

    Raises SandpodError (invalid_argument): its language is no text.
    """
    given = body.get("language", "python")
    if not isinstance(given, str):
        message, step = "The argument language is wrong: it should be a text.", "Name a language, such as python."
        raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=step)
    name = given.strip().lower()
    tool = _PROGRAMS.get(OTHER_NAMES.get(name, name))
    if tool is not None:
        return tool, {key: value for key, value in body.items() if key != "language"}
    arguments = {key: value for key, value in body.items() if key != "code"}
    return "run_shell_command", {**arguments, "command": body["code"]} if "code" in body else arguments
