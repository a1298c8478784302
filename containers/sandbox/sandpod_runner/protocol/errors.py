"""The runner's one refusal: a code that callers know and a sentence, sent as an `error` frame.

The codes are those of the API's `ErrorCode`, which the runner does not import; a test compares the two.
"""

import errno
from typing import Literal

Code = Literal[
    "backend_error",
    "execution_failed",
    "file_exists",
    "forbidden",
    "invalid_argument",
    "invalid_content",
    "invalid_path",
    "not_found",
    "quota_exceeded",
    "session_busy",
    "unsupported_language",
    "upload_too_large",
]

_BY_ERRNO: dict[int, tuple[Code, str]] = {
    errno.ENOENT: ("not_found", "There is no such file or folder."),
    errno.EEXIST: ("file_exists", "There is a file or folder of that name already."),
    errno.ENOTEMPTY: ("invalid_path", "The folder is not empty."),
    errno.ENOTDIR: ("invalid_path", "A part of the path is not a folder."),
    errno.EISDIR: ("invalid_path", "The path is a folder."),
    errno.ELOOP: ("invalid_path", "The path goes through too many links."),
    errno.ENAMETOOLONG: ("invalid_path", "The path is too long."),
    errno.EINVAL: ("invalid_path", "The path can't be used in this way."),
    errno.EBUSY: ("invalid_path", "The path can't be changed: it is in use by the system."),
    errno.EACCES: ("forbidden", "The sandbox's user may not do that."),
    errno.EPERM: ("forbidden", "The sandbox's user may not do that."),
    errno.EROFS: ("forbidden", "The file system is read-only there."),
    errno.ENOSPC: ("quota_exceeded", "The sandbox's disk is full: delete files and try again."),
    errno.EDQUOT: ("quota_exceeded", "The sandbox's disk is full: delete files and try again."),
    errno.EFBIG: ("quota_exceeded", "The file is larger than the sandbox allows."),
}


class Refusal(Exception):  # noqa: N818 - it is an answer, not a fault
    """A request that is not done, with a code and a sentence that the caller may read."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code: Code = code
        self.message = message


def refusal_of(error: OSError) -> Refusal:
    """Return what an error of the system means to the caller. It names no path outside the workspace."""
    message = f"The system refused it: {error.strerror or 'unknown error'}."
    return Refusal(*_BY_ERRNO.get(error.errno or 0, ("execution_failed", message)))
