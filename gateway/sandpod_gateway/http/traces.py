"""Spans of requests to the faces that are not MCP's: FastMCP has one for each of its own."""

from starlette.middleware import Middleware

from sandpod_telemetry import tracing


def server_spans() -> list[Middleware]:
    """Return what is around the routes of a face where there are traces. It has to be the outermost there.

    Of what it records, the address and what else may be private are not sent: see `sandpod_telemetry.attributes`.
    """
    if not tracing.on():
        return []
    from starlette.middleware.opentelemetry import OpenTelemetryMiddleware  # noqa: PLC0415 - loaded with traces alone

    return [Middleware(OpenTelemetryMiddleware)]
