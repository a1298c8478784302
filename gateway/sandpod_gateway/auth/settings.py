"""Settings of who may call, and by what: keys, TLS, links."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sandpod_api.fields import DAY


class AuthSettings(BaseModel):
    """Who may call."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keys_file: Annotated[
        Path | None,
        Field(description="File of hashed API keys; read again when it changes. Needed unless host is loopback."),
    ] = None
    allow_query_key: Annotated[
        bool,
        Field(
            description="Whether a key may stand in the address (?api_key=KEY), for clients that can send no header. "
            "Proxies log addresses."
        ),
    ] = False


class TlsSettings(BaseModel):
    """TLS in the gateway itself; behind an Ingress with TLS leave it out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cert: Annotated[Path | None, Field(description="PEM file with the certificate chain.")] = None
    key: Annotated[Path | None, Field(description="PEM file with its private key.")] = None

    @model_validator(mode="after")
    def _both_or_none(self) -> Self:
        if (self.cert is None) != (self.key is None):
            raise ValueError("tls.cert and tls.key go together")
        return self


class LinkSettings(BaseModel):
    """Links to files. Sizes in bytes, times in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    public_url: Annotated[
        str | None,
        Field(
            pattern=r"^https?://[^/?#]+$",
            description="Address that callers know this server by, as https://sandpod.example.com; default: the one "
            "that the request came to.",
        ),
    ] = None
    expires: Annotated[int, Field(ge=1, le=DAY, description="Time of a link that names none.")] = 3600
    upload_bytes: Annotated[int, Field(ge=1, description="Largest file that a link takes.")] = 2**30
    loopback: Annotated[
        bool,
        Field(
            description="Whether `sandpod stdio` serves links on a free port of 127.0.0.1, which programs of this "
            "machine alone reach; off, there are none unless public_url leads to a server of the same sandboxes."
        ),
    ] = True
    in_content: Annotated[
        bool,
        Field(
            description="Whether a run's answer has a `resource_link` block for each file that the run left; some "
            "clients refuse an answer that has one."
        ),
    ] = False
