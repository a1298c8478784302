"""Secrets in a cluster: given at one gateway, used at the other, and gone with the sandbox."""

import base64
import json
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from typing import Final

import pytest

from sandpod_api import names
from support.cluster.callers import Caller, Session
from support.cluster.cluster import Cluster, ClusterError, forwarded, until
from support.cluster.release import SMALL
from support.operator.process import IMAGE, Objects

VALUE: Final = "s3cr3t/Value+0123456789"
CODE: Final = "import base64, os; t = os.environ['TOKEN']; print(t, base64.b64encode(t.encode()).decode(), len(t))"


@pytest.mark.promise("secret-shared", "secret-hidden")
async def test_secrets_given_at_one_gateway_are_used_at_the_other_and_go_with_the_sandbox(
    cluster: Cluster, alice: Caller, bob: Caller
) -> None:
    async with AsyncExitStack() as stack:
        pods = await cluster.component_pods("gateway")
        with ExitStack() as ports:
            urls = [
                f"http://127.0.0.1:{ports.enter_context(forwarded(cluster.namespace, f'pod/{pod}', 8000))}/mcp"
                for pod in pods
            ]
            assert len(urls) == 2
            one, two, stranger = [
                await stack.enter_async_context(replace(caller, url=url).connect())
                for caller, url in ((alice, urls[0]), (alice, urls[1]), (bob, urls[1]))
            ]
            handle = await one.create(secrets={"TOKEN": VALUE})
            secret = names.session_secret_name(handle, (await cluster.sandbox(handle))["metadata"]["uid"])
            stored = await cluster.get("secrets", secret)
            assert VALUE in base64.b64decode(stored["data"]["secrets.json"]).decode()

            runs = [await gateway.python(CODE, sandbox=handle) for gateway in (two, one)]
            assert [run["stdout"] for run in runs] == [f"[secret TOKEN] [secret TOKEN]= {len(VALUE)}\n"] * 2
            assert (await stranger.python(CODE, sandbox=handle)).error == "session_not_found"

            seen = json.dumps(await cluster.sandbox(handle)) + json.dumps(await cluster.pod_of(handle))
            for pod in pods:
                seen += await cluster.kubectl("-n", cluster.namespace, "logs", pod)
            assert VALUE not in seen
            assert base64.b64encode(VALUE.encode()).decode()[:20] not in seen
            assert not (await two.close(handle)).is_error

            async def gone() -> bool:
                found = await cluster.items("secrets")
                return secret not in {each["metadata"]["name"] for each in found}

            await until("the Secret is deleted", gone, within=60)


@pytest.mark.promise("secret-hidden")
async def test_gateway_can_make_no_secret_that_means_something_to_kubernetes(cluster: Cluster) -> None:
    account = f"--as=system:serviceaccount:{cluster.namespace}:sandpod-gateway"

    token = {"name": "taken", "annotations": {"kubernetes.io/service-account.name": "default"}}
    for metadata, kind, sentence in (
        (token, "kubernetes.io/service-account-token", "type sandpod.dev/session alone"),
        ({"name": "taken"}, "sandpod.dev/session", "belongs to a Sandbox"),
    ):
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind}
        with pytest.raises(ClusterError, match=sentence):
            await cluster.kubectl("-n", cluster.sandboxes, "create", account, "-f", "-", stdin=json.dumps(secret))


@pytest.mark.promise("secret-hidden", "secret-referred")
async def test_template_and_claim_give_the_value_of_a_secret_that_is_there_and_say_which_is_not(
    cluster: Cluster, session: Session
) -> None:
    objects, template = Objects(cluster=cluster), "sandpod-test-secrets"
    there = {"name": "TOKEN", "secretKeyRef": {"name": template, "key": "token"}}
    absent = {"name": "ABSENT", "secretKeyRef": {"name": template, "key": "absent"}, "languages": ["javascript"]}
    for name, users in ((template, None), (f"{template}-mine", "bob, alice"), (f"{template}-bobs", "bob")):
        metadata = {"name": name, "annotations": {names.ANNOTATION_USERS: users} if users else {}}
        await objects.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"token": VALUE}})
    await objects.apply("SandboxTemplate", template, image=IMAGE, resources=SMALL, secrets=[there, absent])
    for name in (template, f"{template}-bobs", f"{template}-none"):
        wanted = {"MINE": {"secret": name, "key": "token"}}
        refused = await session.call("create_sandbox", template=template, secrets=wanted)
        assert (refused.error, refused["message"]) == (
            "not_found",
            f"The Secret {name} with the key token is not there.",
        )
    mine = {"secret": f"{template}-mine", "key": "token", "languages": ["shell"]}
    handle = await session.create(template=template, secrets={"MINE": mine})
    run = await session.python(CODE, sandbox=handle)
    assert run["stdout"] == f"[secret TOKEN] [secret TOKEN]= {len(VALUE)}\n"
    shell = await session.call("run_shell_command", command="echo ${#MINE} $MINE", sandbox=handle)
    assert shell["stdout"] == f"{len(VALUE)} [secret MINE]\n"
    refused = await session.call("run_js_code", code="console.log(1)", sandbox=handle)
    assert refused.error == "not_found"
    assert "ABSENT of the sandbox's template is not there" in refused["message"]
    assert VALUE not in json.dumps(await cluster.pod_of(handle))
    await session.close(handle)
    await objects.delete("sandboxtemplates", template)
    for name in (template, f"{template}-mine", f"{template}-bobs"):
        await objects.delete("secrets", name)
