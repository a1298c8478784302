"""What the namespace of a tenant holds that is made on first use: the chart's file, and the same for one tenant."""

import hashlib
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Self

import yaml

from sandpod_api import names
from sandpod_kube.resources import NAMESPACES, POLICIES, ROLE_BINDINGS, TENANT_CONTENT, Resource

_KINDS: Final = {each.kind: each for each in (*TENANT_CONTENT, NAMESPACES, POLICIES, ROLE_BINDINGS)}
_REVISION: Final = 16  # digits

Manifest = dict[str, Any]


class Content(NamedTuple):
    """All of it, whosever it is to be."""

    objects: tuple[Manifest, ...]  # in the order in which they are made, the namespace first
    revision: str

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """Return what a file says. Raises ValueError: it is not such a file."""
        try:
            objects = tuple(each for each in yaml.safe_load_all(text) if each)
            kinds = [_KINDS[each["kind"]] for each in objects if each["metadata"]["name"]]
        except (yaml.YAMLError, TypeError, KeyError) as error:
            raise ValueError("it has objects that no tenant's namespace has, or is no YAML") from error
        if kinds[:1] != [NAMESPACES] or NAMESPACES in kinds[1:]:
            raise ValueError("its first object, and no other, must be the Namespace")
        return cls(objects, hashlib.sha256(text).hexdigest()[:_REVISION])

    def build(self, tenant: str, namespace: str, release: str) -> list[tuple[Resource, Manifest]]:
        """Return what a tenant gets; `release` is the namespace of the operator."""
        return list(self._built(tenant, namespace, release))

    def _built(self, tenant: str, namespace: str, release: str) -> Iterable[tuple[Resource, Manifest]]:
        for each in self.objects:
            resource, metadata = _KINDS[each["kind"]], each["metadata"]
            if resource is NAMESPACES:
                labels = {**metadata.get("labels", {}), **identity(tenant, release)}
                yield resource, {**each, "metadata": {**metadata, "name": namespace, "labels": labels}}
            else:
                yield resource, {**each, "metadata": {**metadata, "namespace": namespace}}


def identity(tenant: str, release: str) -> dict[str, str]:
    """Return the labels by which a namespace is a tenant's."""
    return {names.LABEL_TENANT: tenant, names.LABEL_RELEASE: release}
