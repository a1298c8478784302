"""Signing in at a server's OpenID Connect provider from a terminal (RFC 8628); tokens are renewed when they end."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

from sandpod.errors import SandpodError, UnauthorizedError, unreachable

_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_SCOPES: Final = ("openid", "offline_access")  # for tokens that can be renewed, where the provider knows them
_EARLY: Final = 60.0  # seconds before its end at which a token is renewed
_LONGEST: Final = 1800.0  # seconds that a sign-in may take, whatever the provider says
_SLOWER: Final = 5.0  # seconds that `slow_down` adds


@dataclass(frozen=True, slots=True)
class Provider:
    """Where users of a server sign in, and with which client."""

    device_endpoint: str
    token_endpoint: str
    client_id: str
    scope: str
    resource: str  # the server that the token is for


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a sign-in gave."""

    access: str
    refresh: str | None
    expires: float  # seconds since 1970

    def text(self) -> str:
        """Return them as one text, to be kept as a key is."""
        return json.dumps(asdict(self))


def find_provider(http: httpx2.Client, server: str, client_id: str | None) -> Provider | None:
    """Return where users of a server sign in from a terminal, or None if that can't be done there.

    Without a client's name it is one that is registered with the provider, where that takes any.
    """
    about = _get(http, f"{server}/.well-known/oauth-protected-resource/mcp")
    for issuer in filter(is_safe, about.get("authorization_servers", ())):
        found = _get(http, f"{str(issuer).rstrip('/')}/.well-known/openid-configuration")
        device, token = found.get("device_authorization_endpoint"), found.get("token_endpoint")
        if is_safe(device) and is_safe(token) and (client := client_id or _registered(http, found)):
            known = found.get("scopes_supported", ())
            scopes = [*about.get("scopes_supported", ()), *(each for each in _SCOPES if each in known)]
            resource = str(about.get("resource", f"{server}/mcp"))
            return Provider(str(device), str(token), client, " ".join(dict.fromkeys(map(str, scopes))), resource)
    return None


def _registered(http: httpx2.Client, provider: Mapping[str, Any]) -> str | None:
    """Register a client (RFC 7591); return its name, or None if the provider does not take it."""
    if not is_safe(place := provider.get("registration_endpoint")):
        return None
    client = {
        "client_name": "sandpod",
        "application_type": "native",
        "grant_types": [_GRANT, "refresh_token"],
        "response_types": [],
        "redirect_uris": [],
        "token_endpoint_auth_method": "none",
    }
    found = _answer(str(place), lambda: http.post(str(place), json=client)).get("client_id")
    return str(found) if found else None


def sign_in(
    http: httpx2.Client,
    provider: Provider,
    tell: Callable[[str, str], None],
    *,
    wait: Callable[[float], None] = time.sleep,
) -> Tokens:
    """Return tokens once the user has signed in; `tell` is given the address to open and the code to type there.

    Raises:
        SandpodError: The user refused, took too long, or the provider did.
    """
    begun = {"client_id": provider.client_id, "scope": provider.scope, "resource": provider.resource}
    asked = _post(http, provider.device_endpoint, begun)
    if "device_code" not in asked:
        raise _refused(asked)
    tell(str(asked.get("verification_uri_complete") or asked.get("verification_uri", "")), str(asked["user_code"]))
    form = {"grant_type": _GRANT, "device_code": str(asked["device_code"]), "client_id": provider.client_id}
    pause, left = float(asked.get("interval", 5)), min(float(asked.get("expires_in", _LONGEST)), _LONGEST)
    while left > 0:
        wait(pause)
        left -= max(pause, 1.0)
        answer = _post(http, provider.token_endpoint, form)
        if "access_token" in answer:
            return _tokens(answer, None)
        if answer.get("error") == "slow_down":
            pause += _SLOWER
        elif answer.get("error") != "authorization_pending":
            raise _refused(answer)
    raise UnauthorizedError("unauthorized", "Nobody signed in in time.", "Run `sandpod login` again.")


def renewed(http: httpx2.Client, text: str, entry: Mapping[str, Any]) -> Tokens | None:
    """Return new tokens in place of kept ones that end soon, or None while they hold. Raises SandpodError."""
    kept = read_tokens(text)
    if kept.expires - time.time() > _EARLY:
        return None
    if kept.refresh is None:
        raise UnauthorizedError("unauthorized", "Your sign-in has ended.", "Run `sandpod login` again.")
    form = {"grant_type": "refresh_token", "refresh_token": kept.refresh, "client_id": str(entry["client_id"])}
    answer = _post(http, str(entry["token_endpoint"]), form)
    if "access_token" not in answer:
        raise _refused(answer)
    return _tokens(answer, kept.refresh)


def read_tokens(text: str) -> Tokens:
    """Return tokens that were kept."""
    try:
        return Tokens(**json.loads(text))
    except (ValueError, TypeError) as error:
        message = "What is kept of your sign-in can't be read."
        raise UnauthorizedError("unauthorized", message, "Run `sandpod login` again.") from error


def _tokens(answer: Mapping[str, Any], refresh: str | None) -> Tokens:
    after = float(answer.get("expires_in", 300))
    return Tokens(str(answer["access_token"]), answer.get("refresh_token", refresh), time.time() + after)


def is_safe(address: object) -> bool:
    """Whether what is sent to an address is encrypted, or stays on this machine."""
    url = urlsplit(str(address or ""))
    return url.scheme == "https" or (url.scheme == "http" and url.hostname in {"localhost", "127.0.0.1", "::1"})


def _get(http: httpx2.Client, address: str) -> dict[str, Any]:
    return _answer(address, lambda: http.get(address))


def _post(http: httpx2.Client, address: str, form: Mapping[str, str]) -> dict[str, Any]:
    return _answer(address, lambda: http.post(address, data=dict(form)))


def _answer(address: str, ask: Callable[[], httpx2.Response]) -> dict[str, Any]:
    """Return the JSON object that is answered, a refusal's too; empty for anything else."""
    try:
        found = ask().json()
    except ValueError:
        return {}
    except httpx2.TransportError as error:
        raise unreachable(address, str(error)) from error
    return found if isinstance(found, dict) else {}


def _refused(answer: Mapping[str, Any]) -> SandpodError:
    why = str(answer.get("error_description") or answer.get("error") or "it does not say why")
    return UnauthorizedError("unauthorized", "The provider refused.", "Run `sandpod login` again.", cause=why[:200])
