"""Messages that no honest client sends, as the bytes of their JSON-RPC requests, with the code that answers each."""

import json
from typing import Final

from mcp_types import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR

from support.gateway.peers import ENVELOPE

ID: Final = 7
MANY: Final = 200_000


def call(arguments: bytes) -> bytes:
    """Return a call of run_python_code whose id comes last, as some clients write it."""
    return (
        b'{"method":"tools/call","params":{"_meta":'
        + json.dumps(ENVELOPE).encode()
        + b',"name":"run_python_code","arguments":{"code":"print(1)",'
        + arguments
        + b'}},"jsonrpc":"2.0","id":7}'
    )


def nested(levels: int, opening: bytes = b'{"a":', closing: bytes = b"}") -> bytes:
    return call(b'"env":' + opening * levels + b"1" + closing * levels)


HOSTILE: Final[dict[str, tuple[int, bytes]]] = {
    "a list of integers": (INVALID_PARAMS, call(b'"args":[' + b",".join([b"1"] * MANY) + b"]")),
    "a list of empty lists": (INVALID_PARAMS, call(b'"args":[' + b",".join([b"[]"] * MANY) + b"]")),
    "an object of many names": (
        INVALID_PARAMS,
        call(b'"env":{' + b",".join([b'"a":1'] * MANY) + b"}"),
    ),
    "many arguments": (INVALID_PARAMS, call(b",".join(b'"a%d":1' % i for i in range(100)))),
    "strings that end in backslashes": (INVALID_PARAMS, call(b'"args":[' + b",".join([b'"\\\\"'] * MANY) + b"]")),
    "a list longer than any tool takes": (INVALID_PARAMS, call(b'"args":[' + b",".join([b'"a"'] * 1001) + b"]")),
    "an argument with a long name": (INVALID_PARAMS, call(b'"' + b"n" * 2000 + b'":1')),
    "a long tool name": (INVALID_PARAMS, call(b'"a":1').replace(b"run_python_code", b"n" * 100_000)),
    "a long progress token": (
        INVALID_PARAMS,
        call(b'"a":1').replace(b'"_meta":{', b'"_meta":{"progressToken":"' + b"t" * 257 + b'",'),
    ),
    "a progress token that is a list": (
        INVALID_PARAMS,
        call(b'"a":1').replace(b'"_meta":{', b'"_meta":{"progressToken":[],'),
    ),
    "a progress token with a fraction": (
        INVALID_PARAMS,
        call(b'"a":1').replace(b'"_meta":{', b'"_meta":{"progressToken":0.5,'),
    ),
    "no progress token": (INVALID_PARAMS, call(b'"a":1').replace(b'"_meta":{', b'"_meta":{"progressToken":null,')),
    "100 levels": (INVALID_PARAMS, nested(100)),
    "130 levels": (INVALID_PARAMS, nested(130)),
    "300 levels": (PARSE_ERROR, nested(300)),
    "5,000 levels": (INVALID_PARAMS, nested(5000)),
    "100,000 levels": (INVALID_PARAMS, nested(100_000)),
    "lists in lists": (PARSE_ERROR, nested(1000, b'["a",' * 3, b"]" * 3)),
    "100 digits": (INVALID_PARAMS, call(b'"timeout":' + b"9" * 100)),
    "5,000 digits": (PARSE_ERROR, call(b'"timeout":' + b"9" * 5000)),
    "an infinite number": (INVALID_PARAMS, call(b'"timeout":1e999')),
    "no number": (PARSE_ERROR, call(b'"timeout":NaN')),
    "no UTF-8": (PARSE_ERROR, call(b'"stdin":"\xff\xfe"')),
    "no JSON-RPC": (INVALID_REQUEST, b'{"id":7}'),
}
