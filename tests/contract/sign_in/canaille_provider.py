"""Canaille, a real OpenID Connect provider, for tests: canaille_provider.py PORT REDIRECT.

It runs in an environment of its own, and prints its issuer once it listens. Its one user, alice, is in the group `red`;
it has one client, `sandpod`. It wants a nonce, and its access tokens are for its clients.
"""

import sys

from canaille import create_app
from canaille.app import models
from canaille.backends import Backend
from joserfc.jwk import RSAKey
from werkzeug.serving import make_server

port, redirect = int(sys.argv[1]), sys.argv[2]
key = RSAKey.generate_key(2048, {"kid": "one"}).as_dict(private=True)
app = create_app(
    {
        "SECRET_KEY": "for tests",
        "SERVER_NAME": f"127.0.0.1:{port}",
        "PREFERRED_URL_SCHEME": "http",
        "WTF_CSRF_ENABLED": False,
        "CANAILLE": {"DATABASE": "memory", "JAVASCRIPT": False, "HTMX": False, "TIMEZONE": "UTC"},
        "CANAILLE_OIDC": {"ACTIVE_JWKS": [key]},
    }
)
with app.app_context():
    backend = Backend.instance
    alice = models.User(
        user_name="alice",
        formatted_name="Alice",
        family_name="Alice",
        emails=["alice@example.com"],
        password="any password",
    )
    backend.save(alice)
    backend.save(models.Group(members=[alice], display_name="red"))
    client = models.Client(
        client_id="sandpod",
        client_secret="secret-of-the-client",
        client_name="sandpod",
        client_uri="http://127.0.0.1",  # one that is trusted: nobody is asked for consent
        redirect_uris=[redirect],
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
        scope=["openid", "groups"],
        token_endpoint_auth_method="client_secret_basic",
    )
    backend.save(client)
    client.audience = [client]  # those who may ask of its tokens
    backend.save(client)

server = make_server("127.0.0.1", port, app, threaded=True)
print(f"http://127.0.0.1:{port}", flush=True)
server.serve_forever()
