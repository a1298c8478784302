"""A small package index on this machine, and wheels made for it: tests of packages need no network."""

import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from support.servers.http_server import web_server


def wheel(
    name: str,
    version: str,
    *,
    needs: tuple[str, ...] = (),
    files: dict[str, str] | None = None,
    scripts: str = "",
    stored: bool = False,
) -> bytes:
    """Return a wheel whose module has a VERSION, and what else is in `files`; `stored` as they are."""
    data = io.BytesIO()
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = [
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}",
        *(f"Requires-Dist: {each}" for each in needs),
    ]
    content = {
        f"{module}/__init__.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **({f"{info}/entry_points.txt": f"[console_scripts]\n{scripts}\n"} if scripts else {}),
        **(files or {}),
    }
    with zipfile.ZipFile(data, "w", zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED) as archive:
        for path, text in content.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in [*content, f"{info}/RECORD"]))
    return data.getvalue()


@dataclass
class Index:
    """What the index has, and what it was asked for.

    Attributes:
        url: Its address.
        files: Content by file name.
        pages: Pages of projects in place of those that list `files`.
        asked: Paths of the requests, in order.
        hold: Answers wait for it.
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)

    def add(self, name: str, version: str, *, tag: str = "py3-none-any", content: bytes | None = None) -> bytes:
        """Offer a wheel, and return it."""
        data = wheel(name, version) if content is None else content
        self.files[f"{name.replace('-', '_')}-{version}-{tag}.whl"] = data
        return data

    def page(self, name: str) -> str | None:
        """Return the links of a project, or None."""
        if name in self.pages:
            return self.pages[name]
        stem = name.replace("-", "_")
        found = {file: data for file, data in self.files.items() if file.split("-")[0] == stem}
        links = [
            f'<a href="/files/{file}#sha256={hashlib.sha256(data).hexdigest()}">{file}</a>'
            for file, data in found.items()
        ]
        return "<!DOCTYPE html><html><body>" + "\n".join(links) + "</body></html>" if found else None

    def downloads(self) -> list[str]:
        """Return the names of the files that were downloaded."""
        return [path.rpartition("/")[2] for path in self.asked if path.startswith("/files/")]


@contextmanager
def package_index() -> Iterator[Index]:
    """Give an index that is served until the block is left."""
    index = Index()
    index.hold.set()

    def answer(path: str) -> tuple[str, bytes] | None:
        index.asked.append(path)
        index.hold.wait(60)
        kind, _, name = path.strip("/").partition("/")
        page = index.page(name) if kind == "simple" else None
        if page is not None:
            return "text/html", page.encode()
        data = index.files.get(name)
        return ("application/octet-stream", data) if data is not None else None

    with web_server(answer) as address:
        index.url = f"{address}/simple"
        try:
            yield index
        finally:
            index.hold.set()
