"""Raises the requests of a claimed sandbox's pod in place, and remembers where that can't be done."""

from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Final

from sandpod_api.conditions import Reason
from sandpod_kube import resources
from sandpod_kube.errors import ConflictError, NotFoundError, OverloadedError, RefusedError
from sandpod_operator.controllers.context import QUOTA, Context
from sandpod_operator.controllers.dispatcher import Dispatcher
from sandpod_operator.model.actions import Resize
from sandpod_operator.model.observed import Refusal
from sandpod_operator.status.failures import clean

_NEVER: Final = datetime.max.replace(tzinfo=UTC)
_LONGEST: Final = timedelta(seconds=60)
_ABSENT: Final = "the API server has no resize of pods; Kubernetes has it from 1.33 on."


class Resizer:
    """Carries out resizes. One that is refused is no fault of the sandbox, which works on as it is."""

    def __init__(self, context: Context, dispatcher: Dispatcher) -> None:
        self._context, self._dispatcher = context, dispatcher

    async def resize(self, action: Resize) -> bool:
        """Ask for the pod's new requests; False where the answer changed what is seen.

        Raises ClusterError: the API server did not answer.
        """
        key, uid = action.key, action.metadata.uid
        try:
            found = await self._context.cluster.resize(key.namespace, key.name, uid, action.container, action.requests)
        except OverloadedError:
            raise
        except NotFoundError as error:
            # The pod is gone, or else the path is: then the API server names no pod.
            if key.name in error.message:
                self._dispatcher.lost(key, uid)
            else:
                self._refused(uid, Reason.RESIZE_INFEASIBLE, _ABSENT)
            return False
        except ConflictError:
            now = await self._context.cluster.get(resources.PODS, key.namespace, key.name)
            self._dispatcher.saw(resources.PODS, now)
            return False
        except RefusedError as error:
            full = error.status == HTTPStatus.FORBIDDEN and QUOTA in error.message
            self._refused(uid, Reason.QUOTA_EXCEEDED if full else Reason.RESIZE_INFEASIBLE, clean(error.message))
            return False
        self._context.state.resizes.pop(uid, None)
        self._dispatcher.saw(resources.PODS, found)
        return True

    def _refused(self, uid: str, reason: Reason, message: str) -> None:
        """Remember a refusal; only a full quota changes by itself, so nothing else is asked for again."""
        state, now = self._context.state, self._context.clock()
        before = state.resizes.get(uid)
        attempts = 1 if before is None else before.attempts + 1
        wait = min(self._context.settings.refused_wait(attempts - 1), _LONGEST)
        until = now + wait if reason == Reason.QUOTA_EXCEEDED else _NEVER
        state.resizes[uid] = Refusal(reason=reason, message=message, attempts=attempts, until=until)
