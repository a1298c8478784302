"""Settings of the OpenID Connect provider where users sign in."""

import re
from pathlib import Path
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from sandpod_api.fields import Name
from sandpod_gateway.api.strict_model import StrictModel

# Issuers with an account for everybody who wants one.
_PUBLIC: Final = {"accounts.google.com", "github.com", "gitlab.com", "appleid.apple.com"}
_LOOPBACK: Final = {"localhost", "127.0.0.1", "::1"}


def is_encrypted(address: str) -> bool:
    """Return whether what is sent to an address is encrypted, or stays on this machine."""
    url = urlsplit(address)
    return url.scheme == "https" or url.hostname in _LOOPBACK


def _encrypted(value: str) -> str:
    if not is_encrypted(value):
        raise ValueError("the address begins with https://")
    return value


def _pattern(value: str | None) -> str | None:
    try:
        groups = 1 if value is None else re.compile(value).groups
    except re.error as error:
        raise ValueError(f"it is no regular expression: {error}") from error
    if not groups:
        raise ValueError("no part of it is in parentheses, which would be the tenant")
    return value


Address = Annotated[str, Field(max_length=2000), AfterValidator(_encrypted)]
Claim = Annotated[str, Field(min_length=1, max_length=100)]
MAX_GROUP: Final = 256  # characters
Group = Annotated[str, Field(min_length=1, max_length=MAX_GROUP)]


class EndpointSettings(StrictModel):
    """Endpoints of a provider that publishes no OpenID Connect configuration, such as GitHub."""

    authorization: Address
    """Where users sign in."""
    token: Address
    """Where codes are exchanged for tokens."""
    userinfo: Address
    """What says who a token's user is, as a JSON object; its fields are the claims."""


class ProxySettings(StrictModel):
    """Sign-in through the gateway, for providers where clients can't register: Entra ID, Google, GitHub."""

    parameters: dict[str, str] = Field(default_factory=dict)
    """More parameters for the provider's sign-in page, such as access_type: offline for Google's refresh tokens."""
    redirect_uris: tuple[str, ...] | None = None
    """Addresses to which clients may have users led back, with * for any part, such as http://localhost:*; default:
    those with which a client registers."""
    endpoints: EndpointSettings | None = None
    """Endpoints of a provider that is no OpenID Connect provider."""
    remember_seconds: Annotated[float, Field(ge=1, le=300)] = 30
    """Seconds for which a gateway remembers whose a token is; a session that ended elsewhere ends within them."""


class IntrospectionSettings(StrictModel):
    """Asking the provider whether a token is still valid (RFC 7662), so that a revoked one is refused at once."""

    endpoint: Address | None = None
    """Where to ask; default: what the provider's configuration says."""
    remember_seconds: Annotated[float, Field(ge=1, le=300)] = 30
    """Seconds for which an answer is used; a revoked token is refused within them."""
    opaque: bool = False
    """Whether tokens that are no JWTs are taken too, by what the provider says of them. It must name their audience."""


class OidcSettings(StrictModel):
    """An OpenID Connect provider whose users may call."""

    issuer: Address
    """Its issuer, exactly as tokens name it, such as https://login.example.com/realms/team."""
    audience: Annotated[str | None, Field(min_length=1, max_length=2000)] = None
    """What tokens for this server have as audience; default: its address, links.public_url and /mcp, which clients ask
    for. Tokens for other services are refused. With `proxy` it is client_id."""
    user_claim: Claim = "sub"
    """Claim that names the user, to whom sandboxes belong. Choose one that the provider never gives to another person.
    An API key of the same user and tenant shares the sandboxes."""
    scopes: tuple[str, ...] = ()
    """Scopes that a token must have. With `proxy`, those that users are asked for; openid is always among them."""
    ca_file: Path | None = None
    """PEM file of the authority that the provider's certificate is from; default: the system's."""
    groups_claim: Claim = "groups"
    """Claim that lists the user's groups."""
    tenants: dict[Group, Name] = Field(default_factory=dict, max_length=1000)
    """Tenant of each group's users. If this or `tenant_pattern` is set, a user whose groups lead to no tenant, or to
    several, is refused."""
    tenant_pattern: Annotated[str | None, Field(max_length=200), AfterValidator(_pattern)] = None
    """Regular expression for whole names of groups; its first part in parentheses is the tenant, as in team-(.+). It is
    for groups that `tenants` does not have. What can't be a tenant's name (small letters, digits, hyphens) leads to
    none."""
    admin_groups: Annotated[tuple[Group, ...], Field(max_length=100)] = ()
    """Groups whose users are administrators."""
    required_claims: dict[Claim, tuple[str, ...]] = Field(default_factory=dict, max_length=20)
    """Claims that a token must have, each with one of these values, such as hd: [example.com] for one Google
    Workspace."""
    client_id: Annotated[str | None, Field(min_length=1, max_length=500)] = None
    """The gateway's own client at the provider; `proxy` and `introspection` need it."""
    client_secret_file: Path | None = None
    """File with that client's secret; it is read whenever it is needed."""
    client_auth: Literal["client_secret_basic", "client_secret_post"] = "client_secret_basic"
    """How the gateway sends its secret to the provider."""
    proxy: ProxySettings | None = None
    """Sign-in through the gateway; default: clients sign in at the provider and bring its tokens."""
    introspection: IntrospectionSettings | None = None
    """Asking the provider whether a token is still valid; default: a token is valid until its end."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.proxy or self.introspection) and not (self.client_id and self.client_secret_file):
            raise ValueError("proxy and introspection need client_id and client_secret_file")
        open_to_all = (self.proxy and self.proxy.endpoints) or urlsplit(self.issuer).hostname in _PUBLIC
        if open_to_all and not self.required_claims and not self.tenants and not self.tenant_pattern:
            raise ValueError("everybody has an account there: set required_claims, tenants or tenant_pattern")
        return self

    def client_secret(self) -> str:
        """Return the secret of the gateway's client. Raises OSError: its file can't be read."""
        if self.client_secret_file is None:
            raise FileNotFoundError("auth.oidc.client_secret_file is not set")
        return self.client_secret_file.read_text(encoding="utf-8").strip()
