"""Where a run's output goes while it runs: progress notifications of the call, for callers that asked for them."""

from fastmcp import Context

from sandpod_gateway.runs.progress import Send


def progress_sender(ctx: Context) -> Send | None:
    """Return what sends one notification, or None where the caller gave no progress token."""
    request = ctx.request_context
    meta = request.meta if request is not None else None
    if not meta or meta.get("progressToken") is None:
        return None

    async def send(number: int, message: str) -> None:
        await ctx.report_progress(number, None, message)

    return send
