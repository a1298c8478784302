"""What a caller tries with another's things at each route of the console, by ids in addresses and forms.

The routes are the console's own. One that is not known here fails the test: whoever adds one says what it may name.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

from sandpod_gateway.console.session import PREFIX
from support.walk.recorded import Ask
from support.walk.rest import Pair, Route, Things
from support.walk.things import never

ORIGIN: Final = {"origin": "http://localhost", "content-type": "application/x-www-form-urlencoded"}


@dataclass(frozen=True)
class Page:
    """What a page takes: for its path, its query and its form, what each part of it names, or `=` and a value."""

    path: str = ""  # what the path's parameter names
    query: tuple[tuple[str, str], ...] = ()
    form: tuple[tuple[str, str], ...] = ()
    acts: tuple[str, ...] = ()  # where that is a part of the path
    admin: bool = False
    makes: bool = False
    ends: int = 0


PAGES: Final[dict[Route, Page]] = {
    ("GET", "/frame"): Page(),
    ("GET", "/sign-in"): Page(query=(("next", "=/console/"),)),
    ("POST", "/sign-in"): Page(form=(("key", "=sandpod_no"),)),
    ("POST", "/sign-out"): Page(),
    ("GET", "/"): Page(),
    ("GET", "/rows"): Page(query=(("known", "=x"),)),
    ("POST", "/sandboxes"): Page(form=(("name", "name"),), makes=True),
    ("DELETE", "/sandboxes/{sandbox}"): Page("sandbox", ends=8),
    ("GET", "/sandboxes/{sandbox}"): Page("sandbox"),
    ("GET", "/sandboxes/{sandbox}/state"): Page("sandbox"),
    ("POST", "/act/{act}"): Page(
        form=(("sandbox", "sandbox"), ("seconds", "=60")), acts=("extend", "suspend", "resume")
    ),
    ("GET", "/all"): Page(admin=True),
    ("GET", "/all/rows"): Page(admin=True),
    ("GET", "/all/{sandbox}"): Page("sandbox", admin=True),
    ("GET", "/all/{sandbox}/state"): Page("sandbox", admin=True),
    ("DELETE", "/all/{sandbox}"): Page("sandbox", admin=True, ends=9),
    ("GET", "/pools"): Page(query=(("tenant", "tenant"),), admin=True),
    ("POST", "/pools/{pool}"): Page("=default", form=(("replicas", "=1"), ("tenant", "tenant")), admin=True),
    ("GET", "/usage"): Page(query=(("by", "=sandbox"),)),
    ("GET", "/keys"): Page(),
    ("POST", "/keys"): Page(form=(("name", "=more"), ("user", "user")), makes=True),
    ("POST", "/keys/{key_id}/rotate"): Page("key_id", ends=1),
    ("DELETE", "/keys/{key_id}"): Page("key_id", ends=2),
    ("GET", "/audit"): Page(query=(("user", "user"),)),
    ("GET", "/connect"): Page(),
    **{(method, "/{path}"): Page("sandbox") for method in ("GET", "POST", "DELETE", "PUT", "PATCH")},
}


def console_pairs(routes: Iterable[Route], things: Things) -> Iterator[Pair]:
    """Return what to try with the console's pages, whose routes are these."""
    for route in routes:
        if route[0] == "HEAD":
            continue  # as GET
        page = PAGES[route]
        kinds = sorted({page.path, *dict(page.query).values(), *dict(page.form).values()})
        kinds = [kind for kind in kinds if kind and not kind.startswith("=")]
        for act in page.acts or ("",):
            for kind in kinds + ["name"] * ("sandbox" in kinds) or [""]:
                asks = [_ask(route, page, things, act, kind, theirs=theirs) for theirs in (True, False)]
                yield Pair(route, kind, asks, admin=page.admin, makes=page.makes, ends=page.ends)


def _ask(route: Route, page: Page, things: Things, act: str, kind: str, *, theirs: bool) -> Ask:
    def value(said: str) -> str:
        if said.startswith("="):
            return said[1:]
        named = kind if kind == "name" and said == "sandbox" else said
        return things[named] if theirs or named != kind else never(things[named])

    def pairs(of: tuple[tuple[str, str], ...]) -> str:
        return urlencode([(name, value(said)) for name, said in of])

    method, path = route
    path = path.replace("{act}", act)
    if page.path:
        path = path.partition("{")[0] + quote(value(page.path), safe="") + path.partition("}")[2]
    query = f"?{pairs(page.query)}" if page.query else ""
    return Ask(method, f"{PREFIX}{path}{query}", ORIGIN, pairs(page.form).encode())
