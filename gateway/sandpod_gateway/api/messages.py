"""Bounds on a message of a caller before any library looks at it. Pure.

Validation reports every wrong value of a list, and JSON libraries disagree on what too deep and too long mean: so what
no honest client sends is refused here, at a cost that does not grow with what it holds.
"""

import json
import math
import re
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

import pydantic_core
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, jsonrpc_message_adapter
from pydantic import ValidationError

from sandpod_gateway.api.results import ErrorCode, Problem

MAX_BYTES: Final = 4 * 2**20  # of one message; what the SDK takes too
MAX_VALUES: Final = 5000  # of all lists and objects of a message together; validation costs about 10 us for each
MAX_ITEMS: Final = 1000  # of one list or object
MAX_ARGUMENTS: Final = 64  # named ones of one call
MAX_DEPTH: Final = 32  # lists and objects inside each other; json, pydantic and jiter give up between 190 and 1000
MAX_NAME: Final = 1024  # characters of an object's key
MAX_TEXT: Final = 64 * 1024  # characters of a string that is not inside a call's arguments
MAX_TOKEN: Final = 256  # characters of a request's id and of its progress token, which comes with each notification
MAX_INTEGER: Final = 2**63 - 1  # what a JSON integer means to other languages, and to a frame

# To the end of the text where there is no closing quote: one pass, whatever the text.
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\(?:.|\Z)[^"\\]*+)*+(?:"|\Z)', re.DOTALL)
# An id that stands in the outermost object: no bracket between it and the start, or the end, of the text. A string's
# own quotes are escaped, so this is found in none.
_ID: Final = rb'"id"\s{0,8}:\s{0,8}(-?[0-9]{1,18}|"[^"\\]{0,256}")'
_ID_AT_START: Final = re.compile(rb"\s{0,8}\{[^{}\[\]]{0,512}?" + _ID + rb"\s{0,8}[,}]")
_ID_AT_END: Final = re.compile(_ID + rb"\s{0,8}(?:,[^{}\[\]]{0,512})?\}\s{0,8}\Z")
_TAIL: Final = 1024  # bytes
_RESEND: Final = "Send one JSON-RPC message as UTF-8 JSON, nested and with numbers as other programs can read them."


@dataclass(frozen=True)
class Refusal:
    """Why a message is not handled."""

    id: str | int | None  # of the request; None where it can't be read
    code: int  # of JSON-RPC
    message: str  # one sentence
    error: ErrorCode = ErrorCode.INVALID_ARGUMENT  # which all transports share
    next_step: str = "Send large data as one string, or as a file through upload_file without content."
    is_answered: bool = True  # what was meant as a notification has no answer where each one is a message of its own

    def body(self) -> bytes:
        """Return the JSON-RPC answer."""
        problem = Problem(error=self.error, message=self.message, next=self.next_step).model_dump(mode="json")
        error = {"code": self.code, "message": f"{self.message} {self.next_step}", "data": problem}
        return json.dumps({"jsonrpc": "2.0", "id": self.id, "error": error}).encode()


def refusal(body: bytes) -> Refusal | None:
    """Return why a message can't be handled, or None where it can."""
    if len(body) > MAX_BYTES:
        return too_large(body)
    if crowded(body):
        return Refusal(readable_id(body), INVALID_PARAMS, f"The message holds over {MAX_VALUES} values.")
    try:
        message = pydantic_core.from_json(body, allow_inf_nan=False, cache_strings="none")
    except ValueError as error:
        text = f"The message is not readable JSON: {error}."[:256]
        return Refusal(readable_id(body), PARSE_ERROR, text, next_step=_RESEND)
    return _refusal_of(message)


def fault_of_arguments(arguments: dict[str, Any]) -> str | None:
    """Return which bound the arguments of a call break that came without a message around them, in a sentence."""
    return _fault({"params": {"arguments": arguments}})


def _refusal_of(message: Any) -> Refusal | None:
    if isinstance(message, list):
        return Refusal(None, INVALID_REQUEST, "Batches are not supported.", next_step="Send one message in a request.")
    if not isinstance(message, dict):
        return Refusal(None, INVALID_REQUEST, "The message is not JSON-RPC 2.0.", next_step=_RESEND)
    request_id = message["id"] if _is_id(message.get("id")) else None
    if (fault := _fault(message)) is not None:
        return Refusal(request_id, INVALID_PARAMS, fault, is_answered="id" in message or "method" not in message)
    try:
        jsonrpc_message_adapter.validate_python(message, by_name=False)
    except ValidationError:
        return Refusal(request_id, INVALID_REQUEST, "The message is not JSON-RPC 2.0.", next_step=_RESEND)
    # As a notification, which it would be taken for, it would never be answered.
    if "method" in message and "id" in message and request_id is None:
        text = "The request's id is neither a string nor an integer."
        return Refusal(None, INVALID_REQUEST, text, next_step="Send such an id.")
    return None


def too_large(start: bytes) -> Refusal:
    """Return the refusal of a message that is too long to be read whole, by what was read of it."""
    step = "Call upload_file without content for a link that takes large files."
    return Refusal(readable_id(start), INVALID_REQUEST, f"The message is over {MAX_BYTES} bytes.", next_step=step)


def crowded(body: bytes) -> bool:
    """Return whether a text has more values than a message may have, found without parsing it."""
    if _separators(body) <= MAX_VALUES:  # a comma inside a string only adds to them
        return False
    values = position = 0
    for string in _STRING.finditer(body):
        values += 1 + _separators(body[position : string.start()])
        if values > 2 * MAX_VALUES:  # each value may have a name
            return True
        position = string.end()
    return values + _separators(body[position:]) > 2 * MAX_VALUES


def _separators(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def readable_id(body: bytes) -> str | int | None:
    """Return the id of a request that need not be readable, or as much of it as was read; None where none is found."""
    found = _ID_AT_START.match(body) or _ID_AT_END.search(body[-_TAIL:])
    try:
        value = json.loads(found[1]) if found is not None else None
    except ValueError:  # no UTF-8, or a control character
        return None
    return value if _is_id(value) else None


def _is_id(value: object) -> TypeGuard[str | int]:
    return isinstance(value, str | int) and not isinstance(value, bool) and len(str(value)) <= MAX_TOKEN


def _fault(message: dict[str, Any]) -> str | None:
    """Return the first bound that a parsed message breaks, in a sentence."""
    params = _object(message.get("params"))
    arguments = params.get("arguments")
    if isinstance(arguments, dict) and len(arguments) > MAX_ARGUMENTS:
        return f"A call has at most {MAX_ARGUMENTS} arguments."
    token = _object(params.get("_meta")).get("progressToken", 0)
    if isinstance(token, bool) or not isinstance(token, str | int):
        return "The progress token is neither a string nor an integer."
    tokens = (message.get("id"), token)
    if any(isinstance(token, str) and len(token) > MAX_TOKEN for token in tokens):
        return f"An id or a progress token has over {MAX_TOKEN} characters."
    waiting: list[tuple[Any, int, int]] = [(message, 1, MAX_TEXT)]
    while waiting:
        value, depth, longest = waiting.pop()
        many = isinstance(value, dict | list)
        fault = _fault_of_many(value, depth) if many else _fault_of_one(value, longest)
        if fault is not None:
            return fault
        if many:
            longest = MAX_BYTES if value is arguments else longest
            items = value.values() if isinstance(value, dict) else value
            waiting.extend((item, depth + 1, longest) for item in items)
    return None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _fault_of_one(value: Any, longest: int) -> str | None:
    if isinstance(value, str) and len(value) > longest:
        return f"A string outside of the arguments has over {longest} characters."
    if isinstance(value, float) and not math.isfinite(value):
        return "A number of the message is not finite."
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        return "A number of the message is outside of 64 bits."
    return None


def _fault_of_many(value: dict[str, Any] | list[Any], depth: int) -> str | None:
    if depth > MAX_DEPTH:
        return f"The message is nested over {MAX_DEPTH} levels deep."
    if len(value) > MAX_ITEMS:
        return f"A list or object of the message has over {MAX_ITEMS} items."
    if isinstance(value, dict) and any(len(name) > MAX_NAME for name in value):
        return f"A name in the message has over {MAX_NAME} characters."
    return None
