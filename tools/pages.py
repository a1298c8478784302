"""Fills the generated parts of README.md and docs/*.md: `make docs`, and with `--check` `make check`.

A part stands between two comments, and its first comment names what belongs there:

    <!-- generated: examples/hello.py -->     a file of examples/ or manifests/, as a code block
    <!-- generated: promises isolation -->    promises of tests/promises.toml with the tests that prove them
    <!-- generated: sentences -->             sentences about security with their promises, of tests/ledger.toml
    <!-- generated: verify kubernetes -->     rows of `sandpod verify`
    <!-- generated: settings gateway -->      settings of the gateway or the operator
    <!-- generated: benchmarks peers -->      parts of the figures in docs/benchmarks.json, which also give two pictures
    <!-- generated: metrics gateway -->       metrics of the gateway or the operator
    <!-- generated: tools -->                 and `rest`, `alerts`, `conditions`, `reasons`
    <!-- end -->

So every page is whole where it is read, on GitHub as on the built site.
"""

import ast
import asyncio
import difflib
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, Final, get_args

import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import metric_table
from benchmarks import page as figures
from benchmarks.results import Results
from sandpod_api.conditions import ADVICE, MEANINGS, SENTENCES, Reason
from sandpod_gateway.app import Gateway
from sandpod_gateway.backends.factory import create_backend
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.rest.operations import OPERATIONS, STARTED
from sandpod_gateway.settings import Settings
from sandpod_gateway.verify.rows import ROWS
from sandpod_operator.settings import OperatorSettings

ROOT: Final = Path(__file__).resolve().parent.parent
PART: Final = re.compile(r"(<!-- generated: (\S+)(.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
LANGUAGES: Final = {".py": "python", ".json": "json", ".yaml": "yaml", ".toml": "toml", ".sh": "shell"}


def table(*rows: tuple[str, ...]) -> str:
    """Return a Markdown table; the first row is its head."""
    cells = [[cell.replace("|", r"\|").replace("\n", " ") for cell in row] for row in rows]
    cells.insert(1, ["---"] * len(rows[0]))
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


@cache
def marked(marker: str, tests: Path = ROOT / "tests") -> dict[str, list[str]]:
    """Return the names of the tests below a folder that have a marker, by each value that it names."""
    found: dict[str, list[str]] = {}
    for path in sorted(tests.rglob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for call in node.decorator_list:
                    if isinstance(call, ast.Call) and ast.unparse(call.func) == f"pytest.mark.{marker}":
                        for value in call.args:
                            found.setdefault(ast.literal_eval(value), []).append(node.name)
    return found


def promises() -> dict[str, dict[str, str]]:
    """Return the sentence of each promise by its id, by its topic."""
    return tomllib.loads((ROOT / "tests/promises.toml").read_text(encoding="utf-8"))


@cache
def ledger() -> dict[str, dict[str, Any]]:
    """Return what tests/ledger.toml has of the promises about security, by topic."""
    return tomllib.loads((ROOT / "tests/ledger.toml").read_text(encoding="utf-8"))


def promise_table(topics: str) -> str:
    """Return the promises of some topics with the tests that prove them, and those about security with their bounds."""
    chosen = [promise for topic in topics.split() for promise in promises()[topic].items()]
    tests = {id_: spans(dict.fromkeys(names)) for id_, names in marked("promise").items()}
    entries = {id_: entry for topic in topics.split() for id_, entry in ledger().get(topic, {}).items()}
    if not entries:
        return table(("Promise", "Proved by"), *((sentence, tests.get(id_, "")) for id_, sentence in chosen))
    rows = {id_: spans(entry.get("rows", ())) or entry["why"] for id_, entry in entries.items()}
    lines = [(sentence, tests.get(id_, ""), entries[id_]["bound"], rows[id_]) for id_, sentence in chosen]
    return table(("Promise", "Proved by", "How far that goes", "Rows of `sandpod verify`"), *lines)


def spans(names: Iterable[str]) -> str:
    """Return names as code."""
    return " ".join(f"`{name}`" for name in names)


def sentence_table(_: str) -> str:
    """Return the sentences about security in README and docs/, with the promises on which they stand."""
    rows = [(f"{begin} …", spans(ids)) for begin, ids in ledger()["sentences"].items()]
    return table(("Sentence", "Promises"), *rows)


def row_table(kind: str) -> str:
    """Return the rows of `sandpod verify` for one kind of sandboxes."""
    rows = [(f"`{row.id}`", row.promise, row.tried, row.bound) for row in ROWS if kind in row.kinds]
    return table(("Row", "Promise", "What is tried", "What that does not show"), *rows)


def fields(schema: Any, prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Give each property of a schema, at whatever depth, by its path."""
    if isinstance(schema, list):
        for each in schema:
            yield from fields(each, prefix)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key != "properties":
                yield from fields(value, prefix)
                continue
            for name, field in value.items():
                yield f"{prefix}{name}", field
                yield from fields(field, f"{prefix}{name}.")


def kind(schema: dict[str, Any]) -> str:
    """Return a property's type in a word or two."""
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(kind(each) for each in schema["anyOf"] if each.get("type") != "null")
    return f"list of {kind(schema['items'])}" if "items" in schema else str(schema.get("type", "any"))


def tools_reference(_: str) -> str:
    """Return each tool with its description and arguments, as models get them."""
    # The defaults, whatever this machine's environment says and `sandpod setup` has made.
    settings = Settings.model_construct(local=LocalSettings(libraries=False))
    tools = asyncio.run(Gateway(settings, create_backend("local")).mcp.list_tools())
    parts = []
    for tool in tools:
        required = tool.parameters.get("required", [])
        rows = [
            (f"`{name}`{' (required)' if name in required else ''}", kind(field), field.get("description", ""))
            for name, field in fields(tool.parameters)
        ]
        parts += [f"### {tool.name}", tool.description or ""]
        parts += [table(("Argument", "Type", "Description"), *rows)] if rows else []
    return "\n\n".join(parts)


def rest_reference(_: str) -> str:
    """Return each operation of the REST API with its tool."""
    rows = [(f"`{each.method} {each.path}`", f"`{each.tool}`") for each in (*OPERATIONS, STARTED)]
    return table(("Request", "Operation"), *rows)


def settings_reference(program: str) -> str:
    """Return every setting of the gateway or the operator with its default."""

    def rows(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, ...]]:
        for name, field in model.model_fields.items():
            value = field.default
            if isinstance(value, BaseModel):
                yield from rows(type(value), f"{prefix}{name}.")
            else:
                default = "" if value in (None, PydanticUndefined, [], (), {}) else f"`{value}`"
                yield f"`{prefix}{name}`", default, field.description or ""
                kinds = get_args(field.annotation)
                if NoneType in kinds and isinstance(kinds[0], type) and issubclass(kinds[0], BaseModel):
                    yield from rows(kinds[0], f"{prefix}{name}.")

    models: dict[str, type[BaseModel]] = {"gateway": Settings, "operator": OperatorSettings}
    return table(("Setting", "Default", "Description"), *rows(models[program], ""))


def condition_table(_: str) -> str:
    """Return the conditions of Sandboxes and pools."""
    return table(("Condition", "What is observed"), *((f"`{kind_}`", text) for kind_, text in MEANINGS.items()))


def reason_table(_: str) -> str:
    """Return every reason of a condition with what to do."""
    rows = [(f"`{reason}`", SENTENCES[reason], ADVICE.get(reason, "")) for reason in Reason]
    return table(("Reason", "Meaning", "What to do"), *rows)


def benchmarks(part: str) -> str:
    """Return a part of the page of figures."""
    return figures.PARTS[part](Results.read(ROOT / "docs/benchmarks.json"))


def alert_table(_: str) -> str:
    """Return the chart's alerts, each with its page, how grave it is, and what it says."""
    groups = yaml.safe_load((ROOT / "charts/sandpod/files/rules.yaml").read_text(encoding="utf-8"))["groups"]
    alerts = sorted((rule for group in groups for rule in group["rules"] if "alert" in rule), key=lambda r: r["alert"])
    page = "[{0}]({0}.md)"
    rows = [(page.format(r["alert"]), r["labels"]["severity"], f"`{r['annotations']['summary']}`") for r in alerts]
    return table(("Alert", "Severity", "What it says"), *rows)


PARTS: Final[dict[str, Callable[[str], str]]] = {
    "promises": promise_table,
    "sentences": sentence_table,
    "verify": row_table,
    "tools": tools_reference,
    "rest": rest_reference,
    "settings": settings_reference,
    "metrics": lambda program: table(*metric_table.rows(program)),
    "alerts": alert_table,
    "conditions": condition_table,
    "reasons": reason_table,
    "benchmarks": benchmarks,
}


def filled(text: str) -> str:
    """Return a page with its generated parts as they must be.

    Raises:
        OSError: A part names a file that does not exist.
    """

    def part(match: re.Match[str]) -> str:
        start, name, arguments, end = match.groups()
        if name in PARTS:
            return f"{start}\n{PARTS[name](arguments.strip())}\n\n{end}"
        path = ROOT / name
        fence = f"```{LANGUAGES.get(path.suffix, '')}"
        return f"{start}\n{fence}\n{path.read_text(encoding='utf-8').strip()}\n```\n\n{end}"

    return PART.sub(part, text)


def pages() -> list[Path]:
    """Return README and every page below docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def written() -> Iterator[tuple[Path, str, str]]:
    """Give each file that is written here, with its text as it is and as it must be."""
    for path in pages():
        text = path.read_text(encoding="utf-8")
        yield path, text, filled(text)
    for name, picture in figures.pictures(Results.read(ROOT / "docs/benchmarks.json")).items():
        path = ROOT / "docs" / name
        yield path, path.read_text(encoding="utf-8") if path.exists() else "", picture


def main() -> int:
    """Fill the pages, or check them; return the exit code."""
    stale = False
    for path, old, new in written():
        if "--check" not in sys.argv[1:]:
            path.write_text(new, encoding="utf-8")
        elif new != old:
            stale = True
            name = str(path.relative_to(ROOT))
            sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True), name, name))
    if stale:
        print("pages: generated parts are not up to date; run `make docs` and commit the result.", file=sys.stderr)
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
