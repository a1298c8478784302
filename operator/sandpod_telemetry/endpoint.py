"""Where spans are sent: by a setting of ours, or by the environment variables that every OpenTelemetry program has."""

import logging
from collections.abc import Mapping
from typing import Final

logger = logging.getLogger(__name__)

PATH: Final = "/v1/traces"
PATTERN: Final = r"^https?://[^/?#@\s]+(/[^?#\s]*)?$"
"""Of a collector's address. It has no password: headers are for that, which are in no list of settings."""
_PROTOCOL: Final = "http/protobuf"


def traces_url(setting: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the URL to send spans to; None where there are no traces."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if setting is not None:
        return setting.rstrip("/") + PATH
    base = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()
    url = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "").strip() or (base and base.rstrip("/") + PATH)
    exporters = environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    if not url or "otlp" not in exporters.split(","):
        return None
    common = environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "").strip() or _PROTOCOL
    protocol = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "").strip() or common
    if protocol != _PROTOCOL:
        logger.warning("there are no traces: OTEL_EXPORTER_OTLP_PROTOCOL is not %s, but %.32r", _PROTOCOL, protocol)
        return None
    return url
