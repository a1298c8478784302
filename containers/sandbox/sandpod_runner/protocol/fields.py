"""Reads the fields of a frame's header. Pure. The other side is not trusted to send what it should."""

from __future__ import annotations

import math
from typing import Any

from sandpod_runner.protocol.errors import Code, Refusal
from sandpod_runner.protocol.messages import RUN_ID


def require(right: object, message: str, code: Code = "invalid_argument") -> None:
    """Raise a refusal unless something is right."""
    if not right:
        raise Refusal(code, message)


def whole(header: dict[str, Any], name: str, default: int = 0, most: int | None = None) -> int:
    """Return a whole number, at most `most`, or the default where it is absent. Raises Refusal: invalid_argument."""
    value: int | None = header.get(name)
    if value is None:
        return default
    require(_is(value, int) and value >= 0, f"{name} must be a whole number, 0 or more.")
    return value if most is None else min(value, most)


def seconds(header: dict[str, Any], name: str, default: float, most: float) -> float:
    """Return seconds, at most `most`, or the default where it is absent. Raises Refusal: invalid_argument."""
    value = header.get(name)
    if value is None:
        return default
    require(_is(value, (int, float)) and 0 <= value < math.inf, f"{name} must be a number of seconds, 0 or more.")
    return float(min(value, most))


def flag(header: dict[str, Any], name: str) -> bool:
    """Return a field that is true or false, and false where it is absent. Raises Refusal: invalid_argument."""
    value = header.get(name)
    require(value is None or isinstance(value, bool), f"{name} must be true or false.")
    return bool(value)


def request_id(header: dict[str, Any]) -> int:
    """Return the number that the answer to a request carries. Raises Refusal: invalid_argument: there is none."""
    number: int = header.get("id", "")
    require(_is(number, int), "The id of a request must be a whole number.")
    return number


def run_name(header: dict[str, Any], kind: str = "run") -> str:
    """Return the name of the run, or the channel, that a frame is about. Raises Refusal: invalid_argument."""
    name: Any = header.get(kind)
    right = isinstance(name, str) and RUN_ID.fullmatch(name)
    require(right, f"The name of a {kind} must be 1 to 64 letters, digits, - or _.")
    return str(name)


def _is(value: Any, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
