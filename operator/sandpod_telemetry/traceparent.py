"""W3C's header `traceparent`, as it may come from anywhere."""

import re
from typing import Final

# Its flags are W3C's: sampled, and maybe random.
_SENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-0[13]", re.ASCII)


def checked(text: str | None) -> str | None:
    """Return a text if it names a span that was sent, and None for anything else."""
    return text if text is not None and _SENT.fullmatch(text) else None
