"""Bounds how many tool calls each caller has under way, over every transport.

Requests are not counted instead: over SSE and stdio a call outlives the request that brings it.
"""

from collections import Counter
from typing import Any

from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from mcp_types import CallToolRequestParams

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.api_keys import current_owner
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.mcp.tool_results import refuse
from sandpod_gateway.metrics import Metrics


class BoundedCalls(Middleware):
    """Refuses calls above a caller's limit.

    Args:
        per_owner: Most calls of one caller at a time.
        metrics: Where refusals are counted.
    """

    def __init__(self, per_owner: int, metrics: Metrics) -> None:
        self._per_owner = per_owner
        self._metrics = metrics
        self._calls: Counter[str] = Counter()

    async def on_call_tool(
        self, context: MiddlewareContext[CallToolRequestParams], call_next: CallNext[CallToolRequestParams, Any]
    ) -> Any:
        """Pass the call on, or answer rate_limited."""
        owner = current_owner()
        if self._calls[owner] >= self._per_owner:
            message = f"You have {self._per_owner} calls in progress, the most for one caller."
            error = SandpodError(ErrorCode.RATE_LIMITED, message, next_step="Wait for some of them to end.")
            return refuse(self._metrics, error)
        self._calls[owner] += 1
        try:
            return await call_next(context)
        finally:
            self._calls[owner] -= 1
            if not self._calls[owner]:
                del self._calls[owner]
