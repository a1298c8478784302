"""A provider of another make: sign-in through two gateways, its own tokens, introspection and revocation.

`make setup` puts it into an environment of its own, in the versions of requirements/provider.lock.
"""

import sys
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any, Final

from sandpod_gateway.auth.callers import owner_of
from sandpod_gateway.auth.current import CallerToken
from sandpod_gateway.auth.oidc.proxy import SignIn
from sandpod_gateway.auth.oidc.settings import OidcSettings
from sandpod_gateway.auth.oidc.tokens import OidcVerifier
from support.gateway.sign_in import PUBLIC, TAKEN, Team, team_of
from support.ports import free_port
from support.servers.program import started

HERE: Final = Path(__file__).parent
PYTHON: Final = Path(sys.prefix) / "provider/bin/python"


class AtCanaille(Team):
    """A team whose users sign in with its forms."""

    async def at_provider(self, address: str) -> str:
        page = await self.http.get(address)
        login = await self.http.post(str(page.url.join(page.headers["location"])), data={"login": "alice"})
        form = str(login.url.join(login.headers["location"]))
        signed_in = await self.http.post(form, data={"password": "any password"})
        back = await self.http.get(signed_in.headers["location"])
        return str(back.headers["location"])


def canaille() -> AbstractAsyncContextManager[str]:
    return started(PYTHON, HERE / "canaille_provider.py", free_port(), f"{PUBLIC}/auth/callback")


async def test_user_signs_in_has_a_tenant_and_is_refused_once_the_provider_revokes_the_session(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        issuer = await stack.enter_async_context(canaille())
        settings: dict[str, Any] = {
            "issuer": issuer,
            "scopes": ("groups",),
            "tenants": {"red": "red"},
            "introspection": {},
        }
        team = await team_of(stack, tmp_path, AtCanaille, **settings)
        client = (await team.register()).json()["client_id"]
        tokens = await team.tokens(client)
        first, second = (gateway._auth for gateway in team.gateways)
        assert isinstance(first, SignIn)
        assert isinstance(second, SignIn)
        found = await first.load_access_token(tokens["access_token"])
        assert isinstance(found, CallerToken)
        assert (found.caller.owner, found.caller.tenant) == (owner_of("red", "alice"), "red")
        renewed = await team.exchange(client, grant_type="refresh_token", refresh_token=tokens["refresh_token"])
        assert renewed.status_code == 200
        token = renewed.json()["access_token"]
        assert (await team.call(token)).status_code == TAKEN

        own = await upstream_of(first, token)
        bearer = OidcVerifier(OidcSettings(issuer=issuer, tenants={"red": "red"}), "sandpod")
        brought = await bearer.verify(own)
        assert brought is not None
        assert brought.caller == found.caller, "its own token says the same"
        await first._provider.post(f"{issuer}/oauth/revoke", {"token": own})
        for gateway in (first, second):
            gateway._known.clear()
            gateway._token_validator._introspection._answers.clear()  # type: ignore[attr-defined]
        assert (await team.call(token)).status_code == 401


async def upstream_of(gateway: SignIn, token: str) -> str:
    """Return the provider's access token for which a token stands."""
    mapping = await gateway._jti_mapping_store.get(key=gateway.jwt_issuer.verify_token(token)["jti"])
    assert mapping is not None
    held = await gateway._upstream_token_store.get(key=mapping.upstream_token_id)
    assert held is not None
    return held.access_token
