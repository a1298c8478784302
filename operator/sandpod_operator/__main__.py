"""`python -m sandpod_operator`: read the settings, set up logging, run. Nothing is decided here."""

import asyncio
import logging
import sys

from pydantic import ValidationError

from sandpod_api import log_lines
from sandpod_operator.settings import OperatorSettings


def read_settings() -> OperatorSettings | None:
    """Return the settings of the environment, or None after saying on standard error what is wrong with them."""
    try:
        return OperatorSettings()
    except ValidationError as error:
        for problem in error.errors():
            name = "_".join(["SANDPOD_OPERATOR", *(str(part).upper() for part in problem["loc"])])
            sys.stderr.write(f"sandpod-operator: {name}: {problem['msg']}\n")
        return None


def main() -> None:
    """Run the operator and end the process with its exit code."""
    settings = read_settings()
    if settings is None:
        sys.exit(2)
    log_lines.configure(settings.log_format, "WARNING")  # kopf and aiohttp log each request below that.
    for package in ("sandpod_operator", "sandpod_kube"):
        logging.getLogger(package).setLevel(settings.log_level)
    # Imported late: kopf and the Kubernetes client take a second, and wrong settings need neither.
    from sandpod_operator.manager.manager import run  # noqa: PLC0415

    sys.exit(asyncio.run(run(settings)))


if __name__ == "__main__":
    main()
