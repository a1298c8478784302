"""What is done for one kind of object, in the three steps that the reconciler takes."""

from abc import ABC, abstractmethod
from datetime import datetime
from typing import Generic, TypeVar

from sandpod_kube.resources import Key
from sandpod_operator.controllers.context import Context
from sandpod_operator.model.actions import Plan

Observed = TypeVar("Observed")
Planned = TypeVar("Planned", bound=Plan)


class Controller(ABC, Generic[Observed, Planned]):
    """The controller of one kind."""

    def __init__(self, context: Context) -> None:
        self.context = context

    @abstractmethod
    async def observe(self, key: Key, now: datetime) -> Observed | None:
        """Return what there is, or None, and forget the object, when it is gone."""

    @abstractmethod
    def plan(self, observed: Observed, now: datetime) -> Planned:
        """Return what is to be done about it."""

    def record(self, observed: Observed, plan: Planned, now: datetime) -> None:
        """Remember what was done: the whole plan was carried out."""
