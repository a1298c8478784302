"""What calls about packages return. MCP tools, REST and CLI return these same models."""

from typing import Annotated, Literal

from pydantic import Field

from sandpod_gateway.api.results import ErrorCode, ResultModel


def _is_none(value: object) -> bool:
    return value is None


class Package(ResultModel):
    """A package of an installation."""

    name: Annotated[str, Field(description="Its name.")]
    version: Annotated[str, Field(description="Its version.")]
    sha256: Annotated[
        str | None, Field(description="SHA-256 of its wheel or npm package; none where the image has it.")
    ] = None


class Installation(ResultModel):
    """An installation of packages, and how far it is."""

    installation: Annotated[str, Field(description="Its name; pass it to get_installation.")]
    sandbox: Annotated[str, Field(description="The handle of the sandbox.")]
    status: Annotated[Literal["installing", "success", "failed"], Field(description="How far it is.")]
    elapsed: Annotated[float, Field(ge=0, description="Seconds since it began, or that it took.")]
    packages: Annotated[
        list[Package], Field(description="What was asked for and what that depends on, once it is installed.")
    ] = Field(default_factory=list)
    note: Annotated[
        str | None,
        Field(exclude_if=_is_none, description="What to know of it, as that packages' scripts were not run."),
    ] = None
    # Without a failure there is no field of one: everywhere else an answer with `error` is a refusal.
    error: Annotated[
        ErrorCode | None, Field(exclude_if=_is_none, description="Why it failed, as one of a fixed list of codes.")
    ] = None
    message: Annotated[str | None, Field(exclude_if=_is_none, description="Why it failed, in a sentence.")] = None
    cause: Annotated[str | None, Field(exclude_if=_is_none, description="What is behind it, where it is known.")] = None
    next: Annotated[str | None, Field(exclude_if=_is_none, description="What to do about it.")] = None


class PackageInfo(Package):
    """A package in a listing."""

    source: Annotated[Literal["installed", "image"], Field(description="Whether it was added or is the image's own.")]


class PackageList(ResultModel):
    """The packages of a sandbox: those that were added, then the image's own."""

    sandbox: str
    language: str
    packages: list[PackageInfo]
