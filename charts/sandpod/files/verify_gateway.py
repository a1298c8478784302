# ruff: noqa: INP001, T201  # a program of its own, whose output is the pod's log
"""Shows that an installed gateway answers: the program of the `helm test` pod, which runs in the gateway's image.

SANDPOD_TEST_URL is the gateway's base URL, KEY_FILE has an API key or isn't there. With a key it runs a line of code in
a sandbox; without one it shows that a caller without a key is refused. It ends with 1 and a sentence when something is
wrong. It takes one sandbox, and gives it back.
"""

import asyncio
import os
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path

from fastmcp import Client

KEY_FILE = Path("/etc/sandpod/test/key")
# The gateway's certificate is for the name that clients use, and this pod calls the Service inside the cluster.
UNVERIFIED = ssl.create_default_context()
UNVERIFIED.check_hostname = False
UNVERIFIED.verify_mode = ssl.CERT_NONE
# Longer than the gateway itself waits for the pod of a sandbox, so that its answer says what is wrong.
SECONDS = 150.0


def status(url: str, data: bytes | None = None) -> int:
    """Return the HTTP status of a request, a POST where there is data."""
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    request = urllib.request.Request(url, data=data, headers=headers)  # noqa: S310  # the chart's own http(s) URL
    try:
        with urllib.request.urlopen(request, timeout=30, context=UNVERIFIED) as answer:  # noqa: S310  # as above
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


async def run(url: str, key: str) -> str:
    """Return what a line of Python prints in a sandbox."""
    async with Client(f"{url}/mcp", auth=key, verify=UNVERIFIED, timeout=SECONDS) as client:
        arguments = {"code": "print(6 * 7)", "fresh": True}
        result = await client.call_tool("run_python_code", arguments, raise_on_error=False)
    content = result.structured_content or {}
    return str(content if result.is_error else content.get("stdout"))


def main() -> str | None:
    """Return what is wrong, or None."""
    url = os.environ["SANDPOD_TEST_URL"]
    key = KEY_FILE.read_text(encoding="ascii").strip() if KEY_FILE.exists() else ""
    if (ready := status(f"{url}/readyz")) != 200:  # noqa: PLR2004  # HTTP's own numbers
        return f"{url}/readyz answered {ready}: look at the gateway's log."
    print("The gateway is ready.")
    if (refused := status(f"{url}/mcp", b"{}")) != 401:  # noqa: PLR2004
        return f"A call without a key was answered with {refused} instead of 401."
    print("A call without a key is refused.")
    if not key:
        print("No key was given (tests.keySecret), so no code was run.")
        return None
    if (output := asyncio.run(run(url, key))) != "42\n":
        return f"A run of print(6 * 7) gave {output!r}."
    print("Code runs in a sandbox.")
    return None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception as error:  # noqa: BLE001  # the last word of the program: a sentence says more than a traceback
        sys.exit(f"The gateway did not answer as it must: {type(error).__name__}: {error}")
