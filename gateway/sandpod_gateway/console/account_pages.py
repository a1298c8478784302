"""The pages about a team: pools, usage, keys, audit records, and how clients connect."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from sandpod_gateway.auth.callers import user_of
from sandpod_gateway.console.calls import Calls, RefusedCall, form, number
from sandpod_gateway.console.views import Views

_DAYS: Final = ("7", "30", "90")
_MEASURES: Final = {
    "runs": "Runs",
    "cpu_seconds": "Processor time",
    "wall_seconds": "Time of sandboxes",
    "memory_gib_seconds": "Memory (GiB seconds)",
    "bytes_out": "Bytes out",
}
_TOP: Final = 50  # rows of the table
_METHOD: Final = ("method", "path")  # of a request, or of a sign-in
_KNOWN: Final = frozenset({"time", "event", "user", "tool", "outcome", "error", "sandbox", "key"})


@dataclass(frozen=True, slots=True)
class AccountPages:
    """Each page, and what its forms do."""

    views: Views
    calls: Calls
    public_url: str | None

    async def pools(self, request: Request) -> Response:
        """Return the pools of warm sandboxes."""
        tenant = request.query_params.get("tenant", "")
        found = await self.calls(request, "list_pools", tenant=tenant)
        return self.views.answer(request, "pools.html", {"pools": found["pools"], "tenant": tenant})

    async def scale(self, request: Request) -> Response:
        """Scale a pool, and return its row."""
        fields = await form(request)
        replicas, tenant = number(fields, "replicas") or 0, fields.get("tenant", "")
        pool = await self.calls(
            request, "scale_pool", pool=request.path_params["pool"], replicas=replicas, tenant=tenant
        )
        return self.views.answer(request, "_pool.html", {"pool": pool, "tenant": tenant})

    async def usage(self, request: Request) -> Response:
        """Return what was used, day by day, and by whom."""
        query = request.query_params
        days, measure = query.get("days", "30"), query.get("measure", "runs")
        days, measure = days if days in _DAYS else "30", measure if measure in _MEASURES else "runs"
        by = query.get("by", "user")
        since = datetime.now(UTC).date() - timedelta(days=int(days) - 1)
        of_days = await self.calls(request, "get_usage", by="user", since=since.isoformat())
        table = await self.calls(request, "get_usage", by=by, since=None if by == "sandbox" else since.isoformat())
        bars = _bars(of_days["rows"], measure, [since + timedelta(days=each) for each in range(int(days))])
        rows = sorted(_summed(table["rows"], by), key=lambda row: -row[measure])
        context = {"bars": bars, "rows": rows[:_TOP], "omitted": max(0, len(rows) - _TOP), "measures": _MEASURES}
        chosen = {"by": by, "days": days, "measure": measure, "choices": _DAYS}
        return self.views.answer(request, "usage.html", {**context, **chosen})

    async def keys(self, request: Request) -> Response:
        """Return the keys."""
        return self.views.answer(request, "keys.html", await self._keys(request))

    async def create_key(self, request: Request) -> Response:
        """Make a key and show it."""
        fields = await form(request)
        made = await self.calls(
            request,
            "create_key",
            name=fields.get("name", ""),
            days=number(fields, "days"),
            read_only="read_only" in fields,
            user=fields.get("user"),
        )
        return await self._made(request, made)

    async def rotate_key(self, request: Request) -> Response:
        """Make a key's successor and show it."""
        return await self._made(request, await self.calls(request, "rotate_key", key_id=request.path_params["key_id"]))

    async def revoke_key(self, request: Request) -> Response:
        """Revoke a key, and return those that remain."""
        await self.calls(request, "revoke_key", key_id=request.path_params["key_id"])
        return self.views.answer(request, "_keys.html", await self._keys(request))

    async def audit(self, request: Request) -> Response:
        """Return audit records."""
        wanted = {name: request.query_params.get(name, "") for name in ("user", "event", "cursor")}
        found: dict[str, Any] = {"records": [], "next": None, "replica": "", "note": ""}
        try:
            found |= await self.calls(request, "list_audit_records", limit=100, **wanted)
        except RefusedCall as refused:
            found["note"] = refused.problem["message"]
        records = [
            {
                **dict.fromkeys(_KNOWN),
                **each,
                "who": user_of(str(each.get("user") or "")),
                "what": each.get("tool") or each.get("uri") or " ".join(each[of] for of in _METHOD if each.get(of)),
                "rest": {name: each[name] for name in each.keys() - _KNOWN},
            }
            for each in found["records"]
        ]
        return self.views.answer(request, "audit.html", {**found, "records": records, "wanted": wanted})

    async def connect(self, request: Request) -> Response:
        """Return what clients need."""
        return self.views.answer(request, "connect.html", {"url": self._url(request)})

    async def _keys(self, request: Request) -> dict[str, Any]:
        found = await self.calls(request, "list_keys")
        return {"keys": sorted(found["keys"], key=lambda key: key["created_at"], reverse=True), "made": None}

    async def _made(self, request: Request, made: dict[str, Any]) -> Response:
        keys = await self._keys(request)
        return self.views.answer(request, "_keys.html", {**keys, "made": made, "url": self._url(request)})

    def _url(self, request: Request) -> str:
        return f"{self.public_url or str(request.base_url.replace(path='')).rstrip('/')}/mcp"


def _bars(rows: list[dict[str, Any]], measure: str, days: list[Any]) -> dict[str, Any]:
    """Return a chart of one measure by day: heights from 0 to 100."""
    sums: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        sums[row.get("day", "")] += row.get(measure) or 0
    values = [(day.isoformat(), sums[day.isoformat()]) for day in days]
    most = max((value for _, value in values), default=0) or 1
    each = [{"day": day, "value": value, "height": round(100 * value / most, 2)} for day, value in values]
    return {"each": each, "most": most, "total": sum(value for _, value in values)}


def _summed(rows: list[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    """Return one row for each user, key, tenant or sandbox, over all days."""
    sums: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        names = {name: str(row.get(name) or "") for name in ("tenant", "user", "key", "sandbox")}
        found = sums.setdefault(tuple(names.values()), {**names, "by": by, **dict.fromkeys(_MEASURES, 0)})
        for measure in _MEASURES:
            found[measure] += row.get(measure) or 0
    return list(sums.values())
