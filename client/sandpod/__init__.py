"""Client of Sandpod: run programs in sandboxes of a server, here or elsewhere.

What belongs here needs a server's REST API and nothing of the server's code. `Sandbox` blocks, `AsyncSandbox` is for
asyncio; they are one implementation.
"""

from sandpod.blocking import Contexts, Files, Packages, Run, Sandbox
from sandpod.errors import (
    ConflictError,
    ForbiddenError,
    InvalidArgumentError,
    LimitError,
    NotFoundError,
    SandboxLostError,
    SandpodError,
    UnauthorizedError,
    UnreachableError,
)
from sandpod.parts import AsyncContexts, AsyncFiles, AsyncPackages
from sandpod.results import (
    Artifact,
    ContextInfo,
    FileEntry,
    Output,
    PackageInfo,
    Picture,
    RunInfo,
    RunResult,
    SandboxInfo,
)
from sandpod.runs import AsyncRun
from sandpod.sandbox import AsyncSandbox

__all__ = [
    "Artifact",
    "AsyncContexts",
    "AsyncFiles",
    "AsyncPackages",
    "AsyncRun",
    "AsyncSandbox",
    "ConflictError",
    "ContextInfo",
    "Contexts",
    "FileEntry",
    "Files",
    "ForbiddenError",
    "InvalidArgumentError",
    "LimitError",
    "NotFoundError",
    "Output",
    "PackageInfo",
    "Packages",
    "Picture",
    "Run",
    "RunInfo",
    "RunResult",
    "Sandbox",
    "SandboxInfo",
    "SandboxLostError",
    "SandpodError",
    "UnauthorizedError",
    "UnreachableError",
]
