"""Where spans are sent, by our setting or by everybody's variables."""

import pytest
from pydantic import ValidationError

from sandpod_gateway.settings import TraceSettings
from sandpod_telemetry.endpoint import traces_url

BASE = "OTEL_EXPORTER_OTLP_ENDPOINT"
OWN = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


@pytest.mark.parametrize(
    ("setting", "environ", "url"),
    [
        (None, {}, None),
        ("http://one:4318", {}, "http://one:4318/v1/traces"),
        ("https://one/otlp/", {BASE: "http://two"}, "https://one/otlp/v1/traces"),
        ("http://one", {"OTEL_TRACES_EXPORTER": "none"}, "http://one/v1/traces"),
        ("http://one", {"OTEL_SDK_DISABLED": "TRUE"}, None),
        (None, {BASE: "http://two:4318/"}, "http://two:4318/v1/traces"),
        (None, {BASE: "http://two:4318", OWN: "http://three/in"}, "http://three/in"),
        (None, {BASE: " "}, None),
        (None, {BASE: "http://two", "OTEL_TRACES_EXPORTER": "none"}, None),
        (None, {BASE: "http://two", "OTEL_TRACES_EXPORTER": "console,otlp"}, "http://two/v1/traces"),
        (None, {BASE: "http://two:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, None),
        (
            None,
            {
                BASE: "http://two",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            },
            "http://two/v1/traces",
        ),
    ],
)
def test_the_setting_comes_before_variables(setting: str | None, environ: dict[str, str], url: str | None) -> None:
    assert traces_url(setting, environ) == url


@pytest.mark.parametrize("endpoint", ["collector:4318", "grpc://c", "http://u:secret@c", "http://c/?a=b", "http://c d"])
def test_what_is_no_address_of_a_collector_is_refused(endpoint: str) -> None:
    with pytest.raises(ValidationError):
        TraceSettings(endpoint=endpoint)
