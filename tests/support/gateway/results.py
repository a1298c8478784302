"""What tests of results share: a caller that runs Python, and times as results give them."""

import re
from datetime import datetime, timedelta
from typing import Any, Final

from support.gateway.served import Served

STEP: Final = timedelta(seconds=1)  # times are told in whole seconds


class Caller(Served):
    async def python(self, code: str, **arguments: Any) -> dict[str, Any]:
        return await self.call("run_python_code", code=code, **arguments)


def moment(text: str) -> datetime:
    """Return a time that was told; RFC 3339 in UTC, as all are."""
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", text)
    return datetime.fromisoformat(text)
