"""What all models of the API share: camelCase on the wire, no unknown fields, and times in RFC 3339."""

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, PlainSerializer, WithJsonSchema
from pydantic.alias_generators import to_camel


def rfc3339(time: datetime) -> str:
    """Return a time as Kubernetes writes it: UTC, whole seconds, `Z`."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


Timestamp = Annotated[
    AwareDatetime,
    PlainSerializer(rfc3339, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]


class ApiModel(BaseModel):
    """A part of a resource. Python names are snake_case, the wire's are camelCase, unknown fields are refused."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)

    def to_wire(self) -> dict[str, Any]:
        """Return the plain JSON object that the API server gets: camelCase, without what is None."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class ObservedModel(ApiModel):
    """A part that others write to as well (metadata, status): unknown fields are ignored when it is read."""

    model_config = ConfigDict(extra="ignore")
