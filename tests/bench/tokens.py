"""What a model pays for the interface: bytes and estimated tokens of the tools' list and of the commonest results.

What is counted is what a model API is given: of a tool its name, description and arguments, of a result its text. Four
bytes are taken for a token, as for English text and code in the tokenizers of most models; each counts a little
differently, and images are counted by their size alone.
"""

import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, get_args

from mcp_types import TextContent

from sandpod_gateway.api.toolsets import ToolsetName
from support.cluster.callers import Caller, Session
from support.cluster.server import serving

BYTES_PER_TOKEN: Final = 4
HEAD: Final = f"{'what a model reads':<42} {'bytes':>7} {'tokens':>7}"

FRAME = """\
import pandas
pandas.DataFrame({"city": ["Oslo", "Rome"] * 5, "year": range(2015, 2025), "sales": range(10)})
"""
PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.show()"
ERROR = "def ratio(a, b):\n    return a / b\n\nprint(ratio(1, 0))"
FAILING_TEST = "def test_sum():\n    assert sum([1, 2]) == 4\n\ndef test_text():\n    assert 'a'.upper() == 'A'\n"
SIXTY_FILES = "mkdir -p many; for n in $(seq 60); do echo $n > many/part-$n.csv; done"

RESULTS: Final[tuple[tuple[str, str, dict[str, Any]], ...]] = (
    ("print(1)", "run_python_code", {"code": "print(1)"}),
    ("a cell's last value, 1+1", "run_python_code", {"code": "1+1", "context": "cells"}),
    ("a DataFrame of ten rows, in a context", "run_python_code", {"code": FRAME, "context": "cells"}),
    ("a plot", "run_python_code", {"code": PLOT}),
    ("an error with its traceback", "run_python_code", {"code": ERROR}),
    ("a failing pytest", "run_shell_command", {"command": f"{sys.executable} -m pytest test_it.py"}),
    ("list_files, 60 files", "list_files", {"path": "many"}),
    ("read_file, 2 kB", "read_file", {"path": "two.txt"}),
    ("install_packages, one package", "install_packages", {"packages": ["humanize"]}),
    ("ls by run_shell_command", "run_shell_command", {"command": "ls -l"}),
)
"""What, and the call whose result it is."""

FILES: Final = {"test_it.py": FAILING_TEST, "two.txt": "0123456789abcde\n" * 128}


@dataclass(frozen=True)
class Text:
    """Something that a model reads: what it is, its bytes, and how many images are beside it."""

    what: str
    size: int
    images: int = 0

    def line(self) -> str:
        """Return its row of the table."""
        beside = f"  and {self.images} image" if self.images else ""
        return f"{self.what:<42} {self.size:>7} {-(-self.size // BYTES_PER_TOKEN):>7}{beside}"


async def tokens() -> AsyncIterator[Text]:
    """Yield each text, of a local server whose sandboxes have this program's Python and libraries."""
    async with serving("--backend", "local", "--local.python", sys.executable) as (url, _):
        # `account` has no tools: it is the REST API's.
        for name in ("all", *(name for name in get_args(ToolsetName) if name not in {"all", "account"})):
            async with Caller(f"{url}?tools={name}", None).connect() as session:
                yield await tools_list(session, name)
        async with Caller(url, None).connect() as session:
            for path, text in FILES.items():
                await session.call("write_file", path=path, text=text)
            await session.call("run_shell_command", command=SIXTY_FILES)
            for what, tool, arguments in RESULTS:
                yield await result(session, what, tool, arguments)


async def tools_list(session: Session, toolset: str) -> Text:
    """Return the size of a toolset's tools as a model API takes them."""
    tools = await session.client.list_tools()
    given = [{"name": tool.name, "description": tool.description, "input_schema": tool.input_schema} for tool in tools]
    return Text(f"tools/list of {toolset}, {len(tools)} tools", len(json.dumps(given, separators=(",", ":"))))


async def result(session: Session, what: str, tool: str, arguments: dict[str, Any]) -> Text:
    """Return the size of a call's result."""
    answer = await session.client.call_tool(tool, arguments, raise_on_error=True)
    texts = [block.text for block in answer.content if isinstance(block, TextContent)]
    return Text(what, sum(len(text.encode()) for text in texts), len(answer.content) - len(texts))
