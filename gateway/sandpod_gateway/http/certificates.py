"""The server's own TLS certificate: read again when its files change, so that renewals need no restart."""

import asyncio
import logging
import ssl
import time
from pathlib import Path
from typing import Final

from cryptography import x509

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import StartError
from sandpod_gateway.metrics import Metrics

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 5.0  # between two looks at the files; a kubelet takes up to two minutes to bring a changed Secret
MAX_FILE: Final = 2**20  # bytes


class Certificate:
    """A certificate chain with its private key. New connections use it as it is in the files."""

    def __init__(self, chain: Path, key: Path, metrics: Metrics) -> None:
        """Read it. Raises StartError: the files can't be read, or do not go together."""
        self._chain = chain
        self._key = key
        self._metrics = metrics
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._stamp: tuple[tuple[int, int], ...] = ()
        self._load()

    async def refresh(self) -> None:
        """Use the files' content if they have changed.

        Raises StartError: they can't be used. The certificate stays as it was; the next call tries again.
        """
        await asyncio.to_thread(self._load)

    def _load(self) -> None:
        try:
            stamp = tuple((stat.st_mtime_ns, stat.st_ino) for stat in (self._chain.stat(), self._key.stat()))
            if stamp == self._stamp:
                return
            # Into a context of its own first: a pair that does not match would leave half of it in the one in use.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._chain, self._key, password="")
            with self._chain.open("rb") as file:
                leaf = x509.load_pem_x509_certificates(file.read(MAX_FILE))[0]
            self.context.load_cert_chain(self._chain, self._key, password="")
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            message = f"The certificate {self._chain} can't be used with the key {self._key}."
            step = "Both are PEM files, of one pair, that this process can read; the key has no password."
            cause = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
            raise StartError(ErrorCode.INVALID_CONTENT, message, cause=str(cause), next_step=step) from error
        self._stamp = stamp
        end = leaf.not_valid_after_utc
        self._metrics.certificate_expiry.set(end.timestamp())
        if end.timestamp() <= time.time():
            logger.warning("the certificate %s expired at %s: clients refuse it until it is renewed", self._chain, end)
        else:
            logger.info("using the certificate %s, which expires at %s", self._chain, end)
