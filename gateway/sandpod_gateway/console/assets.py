"""The console's own files: read once, and served below an address that changes with any of them."""

import gzip
import hashlib
import mimetypes
from functools import cached_property
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
_FOREVER: Final = "public, max-age=31536000, immutable"


class Assets:
    """The files of a folder, by their path in it."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder

    @cached_property
    def _files(self) -> dict[str, tuple[bytes, bytes]]:
        """Each file's content, plain and compressed."""
        paths = sorted(path for path in self._folder.rglob("*") if path.suffix in {*_TYPES, ".txt", ".html"})
        contents = {path.relative_to(self._folder).as_posix(): path.read_bytes() for path in paths}
        return {name: (content, gzip.compress(content, 6, mtime=0)) for name, content in contents.items()}

    @cached_property
    def version(self) -> str:
        """What changes with any file: modules name each other relatively, so all of them have one address."""
        digest = hashlib.sha256()
        for name, (content, _) in self._files.items():
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()[:16]

    def names(self) -> list[str]:
        """Return the paths of all files."""
        return list(self._files)

    async def answer(self, request: Request) -> Response:
        """Return a file; those of another version are what is there now, and not kept."""
        found = self._files.get(request.path_params["path"])
        if found is None:
            return Response("There is no such file.\n", status_code=404, media_type="text/plain")
        plain, packed = found
        suffix = Path(request.path_params["path"]).suffix
        headers = {
            "Cache-Control": _FOREVER if request.path_params["version"] == self.version else "no-store",
            "Access-Control-Allow-Origin": "*",  # modules of a frame that is nobody's origin
            "Content-Type": _TYPES.get(suffix) or mimetypes.types_map.get(suffix, "text/plain"),
            "Vary": "Accept-Encoding",
            "X-Content-Type-Options": "nosniff",
        }
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(packed, headers={**headers, "Content-Encoding": "gzip"})
        return Response(plain, headers=headers)
