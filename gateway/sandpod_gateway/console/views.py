"""Pages from templates, and the headers that keep a page to itself."""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import Response

from sandpod_gateway.auth.callers import tenant_of, user_of
from sandpod_gateway.auth.current import current_caller
from sandpod_gateway.console.assets import Assets
from sandpod_gateway.console.format import FILTERS
from sandpod_gateway.console.session import PREFIX

_HOST: Final = re.compile(r"[A-Za-z0-9.-]+(?::[0-9]+)?")  # an address of IPv6 can't stand in a policy
_SECONDS_TO_LIVE: Final = "private, no-store"


def policy(host: str, nonce: str, static: str) -> str:
    """Return the policy of a page: scripts are this console's files alone, whatever else this host serves."""
    own = f"{host}{static}/" if _HOST.fullmatch(host) else "'self'"
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {own}",
            f"style-src {own} 'nonce-{nonce}'",  # the editor and the terminal make styles of their own
            "img-src 'self' data: blob:",
            "connect-src 'self'",
            "frame-src 'self'",  # frames can lead nobody elsewhere
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        )
    )


FRAME_POLICY: Final = (
    "sandbox allow-scripts; default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; form-action 'none'; base-uri 'none'; frame-ancestors 'self'"
)
"""Of the frame that shows what a program made: an origin of its own, and nobody to talk to but the page around it."""

HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # without any, browsers would not tell a form's origin either
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=()",
    "Cache-Control": _SECONDS_TO_LIVE,
    "X-DNS-Prefetch-Control": "off",
}


def is_fragment(request: Request) -> bool:
    """Return whether a part of a page is asked for, by htmx."""
    return "hx-request" in request.headers


@dataclass(eq=False)
class Views:
    """Renders templates."""

    assets: Assets
    has_keys: bool  # whether callers sign in
    version: str
    _templates: Environment = field(init=False)

    def __post_init__(self) -> None:
        self._templates = Environment(
            loader=PackageLoader("sandpod_gateway.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(FILTERS)

    @property
    def static(self) -> str:
        """Where the console's files are."""
        return f"{PREFIX}/static/{self.assets.version}"

    def answer(
        self,
        request: Request,
        template: str,
        context: Mapping[str, Any] | None = None,
        *,
        status: int = HTTPStatus.OK,
        signed_in: bool = True,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Response:
        """Return a page or a part of one; nothing of a caller is in it unless somebody is `signed_in`."""
        nonce = secrets.token_urlsafe(16)
        caller = current_caller() if signed_in else None
        user = {} if caller is None else {"name": user_of(caller.owner), "tenant": tenant_of(caller.owner)}
        text = self._templates.get_template(template).render(
            static=self.static,
            prefix=PREFIX,
            nonce=nonce,
            user=user,
            is_admin=caller is not None and caller.role == "admin",
            read_only=caller is not None and caller.read_only,
            has_keys=self.has_keys,
            version=self.version,
            path=request.url.path,
            **(context or {}),
        )
        rules = policy(request.headers.get("host", ""), nonce, self.static)
        sent = {**HEADERS, **headers, "Content-Security-Policy": rules, "Vary": "HX-Request"}
        return Response(text, status_code=status, headers=sent, media_type="text/html")

    def refusal(self, request: Request, problem: Mapping[str, Any], status: int, *, signed_in: bool = True) -> Response:
        """Return the coded sentence of a refusal: a page, or a part of the page that asked for one."""
        context = {"problem": problem, "status": status}
        template = "_problem.html" if is_fragment(request) else "error.html"
        return self.answer(request, template, context, status=status, signed_in=signed_in)
