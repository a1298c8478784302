"""Settings of who may call, and by what: keys, TLS, links."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from sandpod_api.fields import DAY
from sandpod_gateway.api.strict_model import StrictModel


class AuthSettings(StrictModel):
    """Who may call."""

    keys_file: Path | None = None
    """File of hashed API keys; read again when it changes. Needed unless host is loopback."""
    allow_query_key: bool = False
    """Whether a key may stand in the address (?api_key=KEY), for clients that can send no header. Proxies log
    addresses."""


class TlsSettings(StrictModel):
    """TLS in the gateway itself; behind an Ingress with TLS leave it out."""

    cert: Path | None = None
    """PEM file with the certificate chain."""
    key: Path | None = None
    """PEM file with its private key."""

    @model_validator(mode="after")
    def _both_or_none(self) -> Self:
        if (self.cert is None) != (self.key is None):
            raise ValueError("tls.cert and tls.key go together")
        return self


class LinkSettings(StrictModel):
    """Links to files. Sizes in bytes, times in seconds."""

    public_url: Annotated[str | None, Field(pattern=r"^https?://[^/?#]+$")] = None
    """Address that callers know this server by, as https://sandpod.example.com; default: the one that the request came
    to."""
    expires: Annotated[int, Field(ge=1, le=DAY)] = 3600
    """Time of a link that names none."""
    upload_bytes: Annotated[int, Field(ge=1)] = 2**30
    """Largest file that a link takes."""
    loopback: bool = True
    """Whether `sandpod stdio` serves links on a free port of 127.0.0.1, which programs of this machine alone reach;
    off, there are none unless public_url leads to a server of the same sandboxes."""
    in_content: bool = False
    """Whether a run's answer has a `resource_link` block for each file that the run left; some clients refuse an answer
    that has one."""
