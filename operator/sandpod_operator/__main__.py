"""`python -m sandpod_operator`: read the settings, set up logging, run. Nothing is decided here."""

import argparse
import asyncio
import gc
import logging
import sys
from pathlib import Path

import yaml
from pydantic import ValidationError

from sandpod_api import log_lines
from sandpod_operator.settings import OperatorSettings
from sandpod_telemetry import log_context, tracing


def read_settings(config: Path | None = None) -> OperatorSettings | None:
    """Return the settings of the environment and of a file (YAML), if there is one.

    Return None after saying on standard error what is wrong with them.
    """
    try:
        values = yaml.safe_load(config.read_bytes()) if config is not None else {}
        if isinstance(values, dict):
            return OperatorSettings(**{str(name): value for name, value in values.items()})
        problems = [f"{config} must be a YAML mapping of settings"]
    except (OSError, yaml.YAMLError) as error:
        problems = [f"{config} can't be read: {error}"]
    except ValidationError as error:
        located = (("_".join(["SANDPOD_OPERATOR", *map(str, each["loc"])]), each["msg"]) for each in error.errors())
        problems = [f"{name.upper()}: {message}" for name, message in located]
    for problem in problems:
        sys.stderr.write(f"sandpod-operator: {problem}\n")
    return None


def main() -> None:
    """Run the operator and end the process with its exit code."""
    parser = argparse.ArgumentParser(prog="sandpod-operator", description="Keep sandboxes as their resources say.")
    parser.add_argument("--config", type=Path, help="settings file (YAML); SANDPOD_OPERATOR_... takes precedence")
    settings = read_settings(parser.parse_args().config)
    if settings is None:
        sys.exit(2)
    log_lines.configure(
        settings.log_format, "WARNING", log_context.current
    )  # kopf and aiohttp log each request below that.
    for package in ("sandpod_operator", "sandpod_kube", "sandpod_telemetry"):
        logging.getLogger(package).setLevel(settings.log_level)
    # Imported late: kopf and the Kubernetes client take a second, and wrong settings need neither. What they make
    # stays, and is not looked through for garbage.
    gc.disable()
    from sandpod_operator.manager.manager import run  # noqa: PLC0415

    try:
        tracing.start(service="sandpod-operator", endpoint=settings.traces_endpoint, ratio=settings.traces_ratio)
    except tracing.TracesUnavailableError as error:
        sys.stderr.write(f"sandpod-operator: {error}\n")
        sys.exit(2)
    gc.freeze()
    gc.enable()
    try:
        code = asyncio.run(run(settings))
    finally:
        tracing.stop()
    sys.exit(code)


if __name__ == "__main__":
    main()
