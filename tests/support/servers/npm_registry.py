"""A small npm registry on this machine, and packages made for it: tests of packages need no network."""

import base64
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from support.servers.http_server import web_server


def tarball(manifest: dict[str, Any], files: dict[str, str]) -> bytes:
    """Return an npm package."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for path, text in {"package/package.json": json.dumps(manifest), **files}.items():
            member = tarfile.TarInfo(path)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
        link = tarfile.TarInfo("package/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return data.getvalue()


def integrity(data: bytes) -> str:
    """Return the hash of a package as npm writes it."""
    return f"sha512-{base64.b64encode(hashlib.sha512(data).digest()).decode()}"


@dataclass
class Registry:
    """What the registry has, and what it was asked for.

    Attributes:
        url: Its address.
        versions: Manifests by name and version.
        files: Packages by file name.
        asked: Paths of the requests, in order.
        hold: Answers wait for it.
    """

    url: str = ""
    versions: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)

    def add(self, name: str, version: str, *, files: dict[str, str] | None = None, **manifest: Any) -> bytes:
        """Offer a package whose module exports its VERSION, and return it. `files` are beside its folder's name."""
        told = {"name": name, "version": version, "main": "index.js", **manifest}
        content = {"package/index.js": f"exports.VERSION = {version!r};\n", **(files or {})}
        data = tarball(told, content)
        file = f"{name.replace('/', '-')}-{version}.tgz"
        self.files[file] = data
        script = {"hasInstallScript": True} if "install" in str(manifest.get("scripts")) else {}
        dist = {"tarball": f"{self.url}files/{file}", "integrity": integrity(data)}
        self.versions.setdefault(name, {})[version] = {**told, **script, "dist": dist}
        return data

    def document(self, name: str) -> bytes | None:
        """Return what is told of a package, or None."""
        versions = self.versions.get(name)
        if versions is None:
            return None
        return json.dumps({"name": name, "dist-tags": {"latest": list(versions)[-1]}, "versions": versions}).encode()

    def downloads(self) -> list[str]:
        """Return the names of the files that were downloaded."""
        return [path.rpartition("/")[2] for path in self.asked if path.startswith("/files/")]


@contextmanager
def npm_registry() -> Iterator[Registry]:
    """Give a registry that is served until the block is left."""
    registry = Registry()
    registry.hold.set()

    def answer(asked: str) -> tuple[str, bytes] | None:
        registry.asked.append(asked)
        registry.hold.wait(60)
        path = unquote(asked).strip("/")
        data = registry.files.get(path.removeprefix("files/")) or registry.document(path)
        return ("application/octet-stream", data) if data is not None else None

    with web_server(answer) as address:
        registry.url = f"{address}/"
        try:
            yield registry
        finally:
            registry.hold.set()
