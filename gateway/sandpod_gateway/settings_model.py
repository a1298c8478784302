"""What all groups of settings have in common."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class SettingsModel(BaseModel):
    """A group of settings. The text below a field is its description, in the help of flags and in the docs."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        for field in cls.model_fields.values():
            field.description = " ".join((field.description or "").split()) or None
