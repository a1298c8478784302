"""What settings and stored keys have in common: a closed, frozen model with the description of a field below it."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """A model that refuses unknown fields and can't be changed. The text below a field is its description."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        for field in cls.model_fields.values():
            field.description = " ".join((field.description or "").split()) or None
        cls.model_rebuild(force=True)  # the schema has the descriptions as they were
