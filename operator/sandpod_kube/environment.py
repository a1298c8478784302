"""What is read of the environment that others defined."""

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass


def has_proxy(url: str) -> bool:
    """Return whether the environment's variables send requests for an address through a proxy.

    Asked once for each client: aiohttp, told to trust the environment, asks for each request, in a thread.
    """
    parts = urlsplit(url)
    return parts.scheme in getproxies() and not proxy_bypass(parts.hostname or "")
