"""What tests of results share: times as results give them."""

import re
from datetime import datetime, timedelta
from typing import Final

STEP: Final = timedelta(seconds=1)  # times are told in whole seconds


def moment(text: str) -> datetime:
    """Return a time that was told; RFC 3339 in UTC, as all are, those of runs to the millisecond."""
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z", text)
    return datetime.fromisoformat(text)
