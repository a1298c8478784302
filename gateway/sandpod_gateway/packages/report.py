"""What the programs that look at a sandbox's packages report. The sandbox is untrusted: all of it is checked."""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

MAX_PACKAGES: Final = 5000


class Report(BaseModel):
    """What such a program reports."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    failure: Annotated[str | None, Field(max_length=300)] = None
