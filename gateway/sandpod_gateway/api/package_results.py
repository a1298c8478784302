"""What calls about packages return."""

from typing import Annotated, Literal

from pydantic import Field

from sandpod_gateway.api.results import ErrorCode, ResultModel


def _is_none(value: object) -> bool:
    return value is None


class Package(ResultModel):
    """A package of an installation."""

    name: str
    version: str
    sha256: str | None = None  # SHA-256 of its wheel or npm package; none where the image has it


class Installation(ResultModel):
    """An installation of packages, and how far it is."""

    installation: str  # its name; pass it to get_installation
    sandbox: str  # the handle of the sandbox
    status: Literal["installing", "success", "failed"]
    elapsed: Annotated[float, Field(ge=0)]  # seconds since it began, or that it took
    packages: list[Package] = Field(default_factory=list)  # those asked for and what they need
    note: Annotated[str | None, Field(exclude_if=_is_none)] = None  # such as that scripts were not run
    # Without a failure there is no field of one: everywhere else an answer with `error` is a refusal.
    error: Annotated[ErrorCode | None, Field(exclude_if=_is_none)] = None  # why it failed
    message: Annotated[str | None, Field(exclude_if=_is_none)] = None  # why it failed, in a sentence
    cause: Annotated[str | None, Field(exclude_if=_is_none)] = None  # what is behind it, where it is known
    next: Annotated[str | None, Field(exclude_if=_is_none)] = None


class PackageInfo(Package):
    """A package in a listing."""

    source: Literal["installed", "image"]  # whether it was added or is the image's own


class PackageList(ResultModel):
    """The packages of a sandbox: those that were added, then the image's own."""

    sandbox: str
    language: str
    packages: list[PackageInfo]
