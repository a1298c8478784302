"""A stand-in for the models' APIs: it calls run_python_code once and answers with what came back.

It speaks as much of OpenAI's chat completions and responses, of Gemini's generateContent and of Anthropic's messages as
a client needs for one tool call, so that the examples of docs/ run without an account.
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
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

TOOL: Final = "run_python_code"
ARGUMENTS: Final = {"code": "print(6 * 7)"}
SHELL: Final = "exec_command"  # of an agent that has a sandbox in place of tools
COMMAND: Final = {"cmd": "python3 -c 'print(6 * 7)'"}


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
    names = [tool["name"] for tool in body["tools"]]
    name, arguments = (TOOL, ARGUMENTS) if TOOL in names else (SHELL, COMMAND)
    assert name in names
    last = body["input"][-1] if isinstance(body["input"], list) else {}
    if last.get("type") == "function_call_output":
        content = [{"type": "output_text", "text": _said(last["output"]), "annotations": []}]
        item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}
    else:
        item = {"type": "function_call", "id": "f", "call_id": "call-1", "name": name, "status": "completed"}
        item["arguments"] = json.dumps(arguments)
    answer = {"id": "r", "object": "response", "created_at": 0, "model": "m", "status": "completed", "output": [item]}
    answer |= {"parallel_tool_calls": False, "tool_choice": "auto", "tools": []}
    return JSONResponse(answer)


async def _gemini(request: Request) -> Response:
    body = await request.json()
    declared = [each["name"] for tool in body.get("tools", ()) for each in tool.get("functionDeclarations", ())]
    name = _own(declared)
    (part, *_) = body["contents"][-1]["parts"]
    if "functionResponse" in part:
        parts: list[dict[str, Any]] = [{"text": _said(part["functionResponse"])}]
    elif name is None:  # a request of the client's own
        parts = [{"text": "{}"}]
    else:
        parts = [{"functionCall": {"name": name, "args": ARGUMENTS}}]
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
    answer = {"candidates": [candidate], "usageMetadata": usage}
    if request.path_params["model"].endswith(":streamGenerateContent"):
        return Response(f"data: {json.dumps(answer)}\n\n", media_type="text/event-stream")
    return JSONResponse(answer)


async def _messages(request: Request) -> Response:
    """Answer as Anthropic's API does, which a client asks for a stream."""
    body = await request.json()
    name = _own([tool["name"] for tool in body.get("tools", ())])
    last = body["messages"][-1]["content"]
    results = [part for part in last if part.get("type") == "tool_result"] if isinstance(last, list) else []
    delta: dict[str, Any]
    if name is None or results:
        block: dict[str, Any] = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": _said(results) if results else "Fine."}
    else:
        block = {"type": "tool_use", "id": "toolu_1", "name": name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(ARGUMENTS)}
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": usage}
    reason = {"stop_reason": "tool_use" if block["type"] == "tool_use" else "end_turn", "stop_sequence": None}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": reason, "usage": usage},
        {"type": "message_stop"},
    ]
    text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return Response(text, media_type="text/event-stream")


def _own(names: list[str]) -> str | None:
    """Return the name that a client has for the tool, which may begin with the server's."""
    return next((name for name in names if name.endswith(TOOL)), None)


app: Final = Starlette(
    routes=[
        Route("/v1/chat/completions", _chat, methods=["POST"]),
        Route("/v1/responses", _responses, methods=["POST"]),
        Route("/v1/messages", _messages, methods=["POST"]),
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
