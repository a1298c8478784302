"""What log lines and spans say of the work on one object."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from sandpod_api import names
from sandpod_kube import resources
from sandpod_kube.resources import Key
from sandpod_operator.cache.object_cache import Store
from sandpod_telemetry import attributes, log_context, tracing


def around(store: Store) -> Callable[[Key], AbstractContextManager[None]]:
    """Return what is around the work on a key.

    Its span counts only if the work changes something or fails: all objects are looked at again and again. It is linked
    to the claim of its Sandbox, whose trace ended long before most of it.
    """

    @contextmanager
    def work_on(key: Key) -> Iterator[None]:
        known: dict[str, str] = {attributes.KIND: key.kind, attributes.NAMESPACE: key.namespace}
        if key.kind != resources.SANDBOXES.kind:
            named = known | {attributes.NAME: key.name}
            with log_context.bound(namespace=key.namespace), tracing.span(f"reconcile {key.kind}", named, quiet=True):
                yield
            return
        sandbox = store.sandbox(key.namespace, key.name)
        claim = None if sandbox is None else sandbox.spec.claim
        span = None if sandbox is None else sandbox.metadata.annotations.get(names.ANNOTATION_TRACEPARENT)
        named = known | {attributes.SANDBOX: key.name, attributes.POD: key.name}
        owner = None if claim is None else claim.owner
        with (
            log_context.bound(owner=owner, namespace=key.namespace, sandbox=key.name),
            tracing.span(f"reconcile {key.kind}", named, links=(span or "",), quiet=True),
        ):
            yield

    return work_on
