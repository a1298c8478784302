"""A stand-in for the models' APIs: it calls run_python_code once and answers with what came back.

It speaks as much of OpenAI's chat completions and responses and of Gemini's generateContent as a client library needs
for one tool call, so that the examples of docs/ run without an account.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

TOOL: Final = "run_python_code"
ARGUMENTS: Final = {"code": "print(6 * 7)"}


def _said(result: Any) -> str:
    """Return whether the tool's result holds the program's output, as an answer."""
    return "The answer is 42." if "42" in json.dumps(result) else f"No 42 in {result!r}"


async def _chat(request: Request) -> JSONResponse:
    body = await request.json()
    assert any(tool["function"]["name"] == TOOL for tool in body["tools"])
    last = body["messages"][-1]
    if last["role"] == "tool":
        message: dict[str, Any] = {"role": "assistant", "content": _said(last["content"])}
    else:
        call = {"id": "call-1", "type": "function", "function": {"name": TOOL, "arguments": json.dumps(ARGUMENTS)}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    reason = "stop" if message["content"] else "tool_calls"
    choice = {"index": 0, "finish_reason": reason, "message": message}
    return JSONResponse({"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]})


async def _responses(request: Request) -> JSONResponse:
    body = await request.json()
    assert any(tool["name"] == TOOL for tool in body["tools"])
    last = body["input"][-1] if isinstance(body["input"], list) else {}
    if last.get("type") == "function_call_output":
        content = [{"type": "output_text", "text": _said(last["output"]), "annotations": []}]
        item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}
    else:
        item = {"type": "function_call", "id": "f", "call_id": "call-1", "name": TOOL, "status": "completed"}
        item["arguments"] = json.dumps(ARGUMENTS)
    answer = {"id": "r", "object": "response", "created_at": 0, "model": "m", "status": "completed", "output": [item]}
    answer |= {"parallel_tool_calls": False, "tool_choice": "auto", "tools": []}
    return JSONResponse(answer)


async def _gemini(request: Request) -> JSONResponse:
    body = await request.json()
    declared = [each["name"] for tool in body["tools"] for each in tool["functionDeclarations"]]
    assert TOOL in declared
    (part, *_) = body["contents"][-1]["parts"]
    if "functionResponse" in part:
        parts: list[dict[str, Any]] = [{"text": _said(part["functionResponse"])}]
    else:
        parts = [{"functionCall": {"name": TOOL, "args": ARGUMENTS}}]
    return JSONResponse({"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]})


app: Final = Starlette(
    routes=[
        Route("/v1/chat/completions", _chat, methods=["POST"]),
        Route("/v1/responses", _responses, methods=["POST"]),
        Route("/{version}/models/{model}", _gemini, methods=["POST"]),
    ]
)


@asynccontextmanager
async def listening() -> AsyncIterator[str]:
    """Serve on a free port of this machine; gives the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task
