"""Namespaces of tenants that are made on first use, on an API server in memory."""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from sandpod_api import names
from sandpod_api.types import SandboxTenant
from sandpod_kube.errors import DeniedError, NotFoundError
from sandpod_kube.resources import NAMESPACES, SANDBOXES, TEMPLATES, TENANT_CONTENT, TENANTS, Key, Resource
from sandpod_operator.controllers.namespaces import find_namespaces
from sandpod_operator.controllers.tenants import TenantController
from sandpod_operator.manifests.tenant import Content
from support.operator.world import NOW, ApiServer, settings

if TYPE_CHECKING:
    from sandpod_kube.client import KubeClient

RELEASE = "release"
QUOTA = "{apiVersion: v1, kind: ResourceQuota, metadata: {name: q, namespace: X}}"
FILE = f"""
apiVersion: v1
kind: Namespace
metadata: {{name: X, labels: {{pod-security.kubernetes.io/enforce: restricted}}}}
---
{QUOTA}
---
apiVersion: sandpod.dev/v1alpha1
kind: SandboxTemplate
metadata: {{name: default, namespace: X}}
spec: {{image: i}}
"""
OWN = {names.LABEL_TENANT: "red", names.LABEL_RELEASE: RELEASE}


class Api(ApiServer):
    """Namespaces can't be read before they are there; some kinds are refused for a number of times."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: NOW)
        self.now = NOW
        self.refusals: dict[str, int] = {}

    async def list_page(self, resource: Resource, namespace: str, query: Any) -> dict[str, Any]:
        if Key("Namespace", "", namespace) not in self.objects:
            raise DeniedError(403, "Forbidden", f"{resource.plural} is forbidden")
        return await super().list_page(resource, namespace, query)

    async def apply(self, resource: Resource, manifest: dict[str, Any]) -> dict[str, Any]:
        if self.refusals.get(resource.kind, 0):
            self.refusals[resource.kind] -= 1
            raise DeniedError(403, "Forbidden", "no rights yet")
        return await super().apply(resource, manifest)


class Place:
    """A controller, with what it sees."""

    def __init__(self, file: str = FILE, **changes: Any) -> None:
        self.api = Api()
        self.changes: dict[str, Any] = {
            "namespace": RELEASE,
            "tenant_prefix": "sbx-",
            "tenant_manifests": Path("tenant.yaml"),
            **changes,
        }
        self.start(file)

    def start(self, file: str = FILE) -> None:
        """Start it anew: it knows nothing."""
        self.settings = settings(**self.changes)
        self.content = Content.parse(file.encode())
        self.controller = TenantController(
            cluster=cast("KubeClient", self.api),
            settings=self.settings,
            content=self.content,
            clock=lambda: self.api.now,
            usable=[key.name for key in self.api.objects if key.kind == "Namespace"],
        )

    def ask_for(self, name: str, **metadata: Any) -> None:
        """A gateway asks for a tenant."""
        made = {"creationTimestamp": "2026-03-01T12:00:00Z", "generation": 1, **metadata}
        self.api.set(TENANTS, {"metadata": {"name": name, "namespace": RELEASE, "uid": f"uid-{name}", **made}})

    async def settle(self) -> None:
        """Have the watch deliver what there is, and work until nothing is left to do at this time."""
        self.controller.saw(self.api.list(TENANTS, RELEASE))
        queue = self.controller.queue
        queue.release_due()
        while not queue._ready.empty():
            await queue._turn(queue._ready.get_nowait(), self.controller.reconcile)

    async def after(self, **time: float) -> None:
        self.api.now += timedelta(**time)
        await self.settle()

    def tenant(self, name: str = "red") -> SandboxTenant:
        return SandboxTenant.model_validate(self.api.objects[Key("SandboxTenant", RELEASE, name)])

    def state(self, name: str = "red") -> tuple[str, str]:
        """Return the status and the reason of the one condition."""
        [ready] = self.tenant(name).status.conditions
        return ready.status, ready.reason

    def inside(self, namespace: str) -> set[tuple[str, str]]:
        return {(key.kind, key.name) for key in self.api.objects if key.namespace == namespace}


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.mark.promise("tenants-on-first-use")
async def test_tenant_gets_its_namespace_with_all_that_the_file_has(place: Place) -> None:
    place.ask_for("red")
    await place.settle()
    space = place.api.objects[Key("Namespace", "", "sbx-red")]
    assert space["metadata"]["labels"] == {**OWN, "pod-security.kubernetes.io/enforce": "restricted"}
    assert place.inside("sbx-red") == {("ResourceQuota", "q"), ("SandboxTemplate", "default")}
    status = place.tenant().status
    assert (status.namespace, status.revision) == ("sbx-red", place.content.revision)
    assert place.state() == ("True", "Provisioned")
    assert place.controller.made.is_set()
    found = await find_namespaces(cast("KubeClient", _Readable(place.api)), place.settings)
    assert found.usable == ("boxes", "sbx-red")


class _Readable:
    """All namespaces can be read."""

    def __init__(self, api: ApiServer) -> None:
        self.pages = api.pages

    async def list_page(self, *_: object) -> dict[str, Any]:
        return {}


async def test_rights_that_are_not_in_force_at_once_are_waited_for_and_a_second_refusal_is_said(place: Place) -> None:
    place.api.refusals = {"SandboxTemplate": 2}
    place.ask_for("red")
    await place.settle()
    assert place.tenant().status.conditions == []
    await place.after(seconds=1)
    assert place.state() == ("False", "ProvisioningFailed")
    assert place.tenant().status.conditions[0].message == "no rights yet"
    await place.after(seconds=10)
    assert place.state() == ("True", "Provisioned")


async def test_failure_later_leaves_the_tenant_its_namespace(place: Place) -> None:
    place.ask_for("red")
    await place.settle()
    place.api.refusals = {"SandboxTemplate": 2}
    await place.after(seconds=200)
    await place.after(seconds=1)
    assert place.state() == ("False", "ProvisioningFailed")
    assert place.tenant().status.namespace == "sbx-red"


@pytest.mark.promise("tenants-on-first-use")
@pytest.mark.parametrize("labels", [{}, {**OWN, names.LABEL_TENANT: "blue"}, {**OWN, names.LABEL_RELEASE: "other"}])
async def test_namespace_of_somebody_else_is_never_adopted(place: Place, labels: dict[str, str]) -> None:
    theirs = place.api.set(NAMESPACES, {"metadata": {"name": "sbx-red", "labels": labels, "uid": "theirs"}})
    place.ask_for("red")
    await place.settle()
    assert place.state() == ("False", "NamespaceTaken")
    assert place.tenant().status.namespace is None
    assert place.api.objects[Key("Namespace", "", "sbx-red")] == theirs
    assert place.inside("sbx-red") == set()
    assert not place.controller.made.is_set()
    place.api.remove(Key("Namespace", "", "sbx-red"))
    await place.after(seconds=200)
    assert place.state() == ("True", "Provisioned")


async def test_namespace_that_appears_between_look_and_creation_is_not_adopted(place: Place) -> None:
    async def late(resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        if resource is NAMESPACES and Key("Namespace", "", name) not in place.api.objects:
            place.api.set(NAMESPACES, {"metadata": {"name": name, "uid": "theirs"}})
            raise NotFoundError(404)
        return await ApiServer.get(place.api, resource, namespace, name)

    place.api.get = late  # type: ignore[method-assign]
    place.ask_for("red")
    await place.settle()
    assert place.state() == ("False", "NamespaceTaken")


@pytest.mark.parametrize(
    ("changes", "name", "reason"),
    [
        ({"namespaces": ("boxes", "sbx-red")}, "red", "NamespaceTaken"),
        ({"tenant_prefix": "re"}, "lease", "NamespaceTaken"),
        ({}, "a" * 60, "NameTooLong"),
    ],
)
async def test_tenant_that_can_have_no_namespace_of_its_own_gets_none(
    changes: dict[str, Any], name: str, reason: str
) -> None:
    place = Place(**changes)
    place.ask_for(name)
    await place.settle()
    assert place.api.writes == [("patch_status", "SandboxTenant")]
    assert place.state(name) == ("False", reason)


async def test_number_of_tenants_is_bounded_and_one_that_goes_makes_room() -> None:
    place = Place(max_tenants=2)
    for number, name in enumerate(("c", "b", "a")):
        place.ask_for(name, creationTimestamp=f"2026-03-01T12:00:0{number}Z")
    await place.settle()
    assert [place.state(name)[1] for name in "cba"] == ["Provisioned", "Provisioned", "TooManyTenants"]
    # A lower bound takes nobody's namespace away.
    place.changes["max_tenants"] = 1
    place.start()
    await place.settle()
    await place.after(seconds=200)
    assert [place.state(name)[1] for name in "cba"] == ["Provisioned", "Provisioned", "TooManyTenants"]
    for name in "cb":
        place.api.remove(Key("SandboxTenant", RELEASE, name))
    await place.settle()
    assert place.state("a") == ("True", "Provisioned")
    assert Key("Namespace", "", "sbx-c") in place.api.objects


async def test_what_was_changed_by_others_comes_back_and_what_the_file_no_longer_has_goes(place: Place) -> None:
    place.ask_for("red")
    await place.settle()
    mine = {"metadata": {"name": "mine", "namespace": "sbx-red", "uid": "mine", "labels": {}}}
    place.api.set(TEMPLATES, mine)
    place.api.remove(Key("ResourceQuota", "sbx-red", "q"))
    _select(place)
    await place.after(seconds=200)
    assert ("ResourceQuota", "q") in place.inside("sbx-red")
    place.start(FILE.replace(QUOTA, QUOTA.replace("name: q", "name: r")))
    await place.settle()
    # A template of somebody else's stays.
    assert place.inside("sbx-red") == {("ResourceQuota", "r"), *(("SandboxTemplate", n) for n in ("default", "mine"))}
    assert place.tenant().status.revision == place.content.revision


def _select(place: Place) -> None:
    """Have lists of what a tenant has leave out what is not the operator's, as the label selector does."""
    pages = place.api.pages

    async def selected(resource: Resource, namespace: str) -> Any:
        async for each in pages(resource, namespace):
            if resource not in TENANT_CONTENT or each["metadata"]["name"] != "mine":
                yield each

    place.api.pages = selected  # type: ignore[method-assign]


async def test_process_that_begins_anew_writes_nothing_for_tenants_that_have_all(place: Place) -> None:
    place.ask_for("red")
    await place.settle()
    place.start()
    place.api.writes.clear()
    await place.settle()
    assert place.api.writes == []
    await place.after(seconds=200)
    assert ("apply", "Namespace") in place.api.writes
    assert ("patch_status", "SandboxTenant") not in place.api.writes
    assert not place.controller.made.is_set()


@pytest.mark.promise("tenants-on-first-use")
@pytest.mark.parametrize("process", ["same", "next"])
async def test_namespace_that_was_deleted_is_made_anew_as_soon_as_its_name_is_free(place: Place, process: str) -> None:
    place.ask_for("red")
    await place.settle()
    place.controller.made.clear()
    # While its namespace ends, nothing can be made in it.
    place.api.remove(Key("ResourceQuota", "sbx-red", "q"))
    place.api.refusals = {"ResourceQuota": 2}
    if process == "same":
        place.controller.lost("other")
        await place.settle()
        assert place.api.refusals == {"ResourceQuota": 2}
        place.controller.lost("sbx-red")
    else:
        place.start()
        place.controller.lost("sbx-red")
    await place.settle()
    await place.after(seconds=1)
    assert place.state() == ("False", "ProvisioningFailed")
    assert place.tenant().status.namespace == "sbx-red"
    for key in [key for key in place.api.objects if "sbx-red" in key]:
        place.api.remove(key)
    await place.after(seconds=2)
    assert place.state() == ("True", "Provisioned")
    assert place.inside("sbx-red") == {("ResourceQuota", "q"), ("SandboxTemplate", "default")}
    assert place.controller.made.is_set()


async def test_process_that_begins_anew_without_a_tenants_namespace_makes_it(place: Place) -> None:
    place.ask_for("red")
    await place.settle()
    for key in [key for key in place.api.objects if "sbx-red" in key]:
        place.api.remove(key)
    place.start()
    await place.settle()
    assert place.inside("sbx-red") == {("ResourceQuota", "q"), ("SandboxTemplate", "default")}
    assert place.controller.made.is_set()


@pytest.mark.parametrize(
    "text", ["a: [", "- 1", "{kind: Pod, metadata: {name: a}}", "", QUOTA, FILE.replace("---", "--- {}\n---", 1) * 2]
)
def test_file_that_is_not_what_a_namespace_holds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"it has objects that no tenant|must be the Namespace"):
        Content.parse(text.encode())


def test_everything_is_selected_by_a_label_before_it_is_deleted() -> None:
    assert {each.selector for each in TENANT_CONTENT} == {"app.kubernetes.io/managed-by=sandpod-operator"}
    assert SANDBOXES not in TENANT_CONTENT
