"""Chooses what checks the callers of a server."""

from typing import TYPE_CHECKING, TypeGuard

from fastmcp.server.auth import AuthProvider

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.oidc.places import MemoryPlaces, StatePlaces
from sandpod_gateway.auth.oidc.proxied import Proxied
from sandpod_gateway.auth.oidc.resource_server import ResourceServer
from sandpod_gateway.auth.oidc.settings import OidcSettings, is_encrypted
from sandpod_gateway.auth.verifier import Keys, Verifier
from sandpod_gateway.errors import StartError

if TYPE_CHECKING:
    from sandpod_gateway.auth.oidc.proxy import SignIn


def create_auth(
    keys: Keys, oidc: OidcSettings | None, public_url: str | None, places: StatePlaces | None
) -> AuthProvider:
    """Return what checks the callers of a server; with a provider, it also leads clients to where users sign in.

    `places` is what all gateways share of sign-ins through them; None where there is only one gateway. Raises
    StartError: the secret of the gateway's client can't be read, or users would sign in without TLS.
    """
    if oidc is None or public_url is None:
        return Verifier(keys)
    if oidc.client_secret_file is not None:
        try:
            oidc.client_secret()
        except (OSError, UnicodeDecodeError) as error:
            message = f"The file of auth.oidc.client_secret_file can't be read: {oidc.client_secret_file}."
            raise StartError(ErrorCode.NOT_FOUND, message, next_step="Put the client's secret into it.") from error
    if oidc.proxy is None:
        return ResourceServer(keys, oidc, public_url)
    if not is_encrypted(public_url):
        message = "Users can't sign in through a gateway whose address, links.public_url, does not begin with https://."
        raise StartError(ErrorCode.INVALID_ARGUMENT, message, next_step="Put TLS in front of it, or set tls.cert.")
    from sandpod_gateway.auth.oidc.proxy import SignIn  # noqa: PLC0415 - for this kind of sign-in alone
    from sandpod_gateway.auth.oidc.state import SignInState  # noqa: PLC0415 - as above

    return SignIn(oidc, keys, SignInState(places or MemoryPlaces()), public_url)


def is_proxied(auth: AuthProvider | None) -> "TypeGuard[SignIn]":
    """Return whether users sign in through the gateway."""
    return isinstance(auth, Proxied)
