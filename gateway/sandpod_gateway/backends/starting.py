"""The start of one tenant's backend beside those of others."""

import logging

from sandpod_gateway.backends.base import Backend
from sandpod_gateway.errors import SandpodError

logger = logging.getLogger(__name__)


async def try_start(tenant: str, backend: Backend) -> bool:
    """Start a tenant's backend, and return whether it did; if not, the log says why, and no other tenant notices."""
    try:
        await backend.start()
    except SandpodError as error:
        logger.error("tenant %s is not available: %s %s", tenant, error.message, error.next_step)  # noqa: TRY400
    except Exception:
        logger.exception("tenant %s is not available", tenant)
    else:
        logger.info("tenant %s is available", tenant)
        return True
    return False
