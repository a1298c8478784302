"""The names of spans' attributes, and what of a span may leave the process.

Sandpod's own names begin with `sandpod.`; all others are OpenTelemetry's semantic conventions (MCP, GenAI, HTTP, k8s).
What is in neither list below is not sent, whichever library set it: paths, queries, ids of sessions, messages of
exceptions, and whatever a later version of a library adds.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal

Attributes = Mapping[str, str | int | float | bool | None]
"""Of a span; what is None is left out."""
Kind = Literal["internal", "client"]
Header = tuple[bytes, bytes]

SANDBOX: Final = "sandpod.sandbox"
TEMPLATE: Final = "sandpod.template"
CLAIM_ORIGIN: Final = "sandpod.claim.origin"
"""How a claim was met: `warm` from a pool, `cold` by a sandbox that was made for it, `held` by the session's own."""
BLOCKED_BY: Final = "sandpod.start.blocked_by"
"""The code of what a sandbox that starts waited for last, such as quota_exceeded."""
STREAM_WARM: Final = "sandpod.stream.warm"
RUN: Final = "sandpod.run.id"
LANGUAGE: Final = "sandpod.run.language"
OUTCOME: Final = "sandpod.run.outcome"
BACKGROUND: Final = "sandpod.run.background"
BYTES: Final = "sandpod.file.bytes"
KIND: Final = "sandpod.kind"
NAME: Final = "sandpod.name"
CHANGES: Final = "sandpod.reconcile.changes"
CODE: Final = "sandpod.error.code"
"""Our own code of what went wrong; as `error.type` too, in place of the class of an exception."""

ERROR_TYPE: Final = "error.type"
NAMESPACE: Final = "k8s.namespace.name"
POD: Final = "k8s.pod.name"
METHOD: Final = "http.request.method"
STATUS: Final = "http.response.status_code"
SERVER: Final = "server.address"
MCP_METHOD: Final = "mcp.method.name"
TOOL: Final = "gen_ai.tool.name"

OWN: Final = "sandpod."
"""What all of our own begin with."""
CONVENTIONAL: Final = frozenset(
    {
        *(ERROR_TYPE, NAMESPACE, POD, METHOD, STATUS, SERVER, MCP_METHOD, TOOL),
        *("enduser.id", "gen_ai.operation.name", "mcp.protocol.version", "rpc.response.status_code"),
        *("http.route", "network.protocol.version", "server.port", "url.scheme"),
    }
)
"""All others that are sent."""

MAX_TEXT: Final = 256  # characters of one value
MAX_ATTRIBUTES: Final = 48
MAX_EVENTS: Final = 8
MAX_LINKS: Final = 8

TOOL_NAME: Final = re.compile(r"[A-Za-z][\w.-]{0,63}", re.ASCII)
METHOD_NAME: Final = re.compile(r"[a-z]{1,32}(?:/[A-Za-z_]{1,32}){0,3}", re.ASCII)
SPAN_NAME: Final = re.compile(r"[\w ./{}:-]{1,128}", re.ASCII)
"""Forms of names that a client can choose: another form may hold anything, and is not sent."""
