"""The parts that all resources share: names, quantities, CEL rules, metadata, a workspace."""

import re
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from sandpod_api.base import ApiModel, ObservedModel, Timestamp
from sandpod_api.names import DNS_LABEL

DAY: Final = 86_400
MAX_LIFETIME: Final = 7 * DAY

QUANTITY: Final = r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"
_UNITS: Final[dict[str, float]] = {"m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12} | {
    f"{unit}i": 2 ** (10 * power) for power, unit in enumerate("KMGT", 1)
}


def parse_quantity(text: str) -> float:
    """Return the number that a Kubernetes quantity stands for: cores or bytes. Raises ValueError: it is none."""
    match = re.fullmatch(QUANTITY, text)
    if match is None:
        raise ValueError(f"{text!r} is no quantity such as 500m, 1 or 512Mi")
    unit = match[2] or ""
    return float(text.removesuffix(unit)) * _UNITS[unit]


def rules(*texts: str) -> ConfigDict:
    """Return the configuration of a model that has the API server check CEL expressions.

    Each is followed by the sentence with which the API server refuses what it does not hold for.
    """
    pairs = zip(texts[::2], texts[1::2], strict=True)
    checks: list[Any] = [{"rule": expression, "message": message} for expression, message in pairs]
    return ConfigDict(json_schema_extra={"x-kubernetes-validations": checks})


def list_map(key: str) -> dict[str, Any]:
    """Return the schema extra of a list whose items have that key: the API server merges them by it."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


Name = Annotated[str, Field(pattern=DNS_LABEL, max_length=63)]
StorageClassName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$", max_length=253)]
Quantity = Annotated[str, Field(pattern=QUANTITY, max_length=32)]


class ObjectMeta(ObservedModel):
    """The part of Kubernetes' metadata that Sandpod reads."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: Timestamp | None = None
    deletion_timestamp: Timestamp | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    owner_references: list[dict[str, Any]] = Field(default_factory=list)

    def owned_by(self, uid: str) -> bool:
        """Return whether the object belongs to the one with that uid, and not to an earlier one of the same name."""
        return any(reference.get("uid") == uid for reference in self.owner_references)

    def time_in(self, annotation: str) -> datetime | None:
        """Return the time that an annotation holds (RFC 3339), or None: whoever may write it may write anything."""
        try:
            time = datetime.fromisoformat(self.annotations.get(annotation, ""))
        except ValueError:
            return None
        return time if time.tzinfo else None


class TemplateRef(ApiModel):
    """The template that a sandbox is made from, in the same namespace."""

    name: Name = Field(description="Name of the SandboxTemplate.")


class Workspace(ApiModel):
    """The folder /workspace of a sandbox."""

    size: Quantity = Field("256Mi", description="The most it can hold.")
    medium: Literal["Memory", "Disk"] = Field(
        "Memory",
        description="Memory: bounded at once, counts against the memory limit. "
        "Disk: larger; the node evicts the pod some time after it passes the size.",
    )
    persistent: bool = Field(
        False,
        description="Whether it is on a volume claim and outlives the pod, so that the sandbox can be suspended "
        "and resumed with its files. The claim is deleted with the Sandbox.",
    )
    storage_class_name: StorageClassName | None = Field(
        None, description="StorageClass of a persistent workspace; absent means the cluster's default."
    )
