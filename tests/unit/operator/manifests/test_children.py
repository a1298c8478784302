"""The Sandboxes that wait in a pool, as the operator makes them."""

from sandpod_operator.manifests.pod import build_warm_sandbox, template_hash
from support.operator.world import a_pool, a_template


def test_warm_sandbox_is_exactly_this() -> None:
    template = a_template()
    assert build_warm_sandbox(a_pool(), template, "x7kq2mzb") == {
        "apiVersion": "sandpod.dev/v1alpha1",
        "kind": "Sandbox",
        "metadata": {
            "name": "warm-x7kq2mzb",
            "namespace": "boxes",
            "labels": {
                "app.kubernetes.io/managed-by": "sandpod",
                "sandpod.dev/template": "python",
                "sandpod.dev/pool": "warm",
                "sandpod.dev/state": "warm",
            },
            "annotations": {"sandpod.dev/template-hash": template_hash(template)},
            "ownerReferences": [
                {
                    "apiVersion": "sandpod.dev/v1alpha1",
                    "kind": "SandboxPool",
                    "name": "warm",
                    "uid": "uid-warm",
                    "controller": True,
                    "blockOwnerDeletion": False,
                }
            ],
        },
        "spec": {"templateRef": {"name": "python"}},
    }


def test_template_hash_follows_the_spec_and_nothing_else() -> None:
    renamed = a_template("other")
    changed = a_template(preimport=["numpy"])
    assert template_hash(a_template()) == template_hash(renamed)
    assert template_hash(a_template()) != template_hash(changed)
