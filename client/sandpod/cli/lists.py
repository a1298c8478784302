"""`sandpod ps`, `logs`, `close` and `pools`: what there is, what it wrote, and its end."""

import argparse
import sys
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote

from sandpod.blocking import Run, Sandbox
from sandpod.cli.arguments import api, server
from sandpod.cli.output import print_json, print_table, write_raw
from sandpod.results import Output, RunResult
from sandpod.runs import AsyncRun
from sandpod.transport import finish

_OF_RUNS: Final = {
    "RUN": "run_id",
    "LANGUAGE": "language",
    "STATE": "state",
    "OUTCOME": "outcome",
    "CONTEXT": "context",
    "STARTED": "started_at",
}


def add_parsers(commands: Any, options: argparse.ArgumentParser) -> None:
    """Add the commands to the parser's subcommands."""
    ps = commands.add_parser("ps", help="list your sandboxes, or the runs of one", parents=[options])
    ps.add_argument("sandbox", nargs="?", metavar="SANDBOX", help="handle or name; default for your default sandbox")
    ps.set_defaults(command=list_sandboxes)
    logs = commands.add_parser("logs", help="print what a run has written", parents=[options])
    logs.add_argument("run", metavar="RUN", help="as `sandpod ps SANDBOX` shows it")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    logs.set_defaults(command=print_logs)
    close = commands.add_parser("close", help="end sandboxes and delete their files", parents=[options])
    close.add_argument("sandboxes", nargs="+", metavar="SANDBOX", help="handle or name")
    close.set_defaults(command=close_sandboxes)
    pools = commands.add_parser("pools", help="list pools of warm sandboxes, for administrators", parents=[options])
    pools.add_argument("pool", nargs="?", metavar="POOL", help="pool to scale")
    pools.add_argument("replicas", nargs="?", type=int, metavar="REPLICAS", help="sandboxes that it is to have")
    pools.add_argument("--tenant", help="a tenant other than yours")
    pools.set_defaults(command=show_pools)


def list_sandboxes(arguments: argparse.Namespace) -> int:
    """List sandboxes, or a sandbox's runs."""
    if arguments.sandbox is not None:
        with Sandbox.connect(arguments.sandbox, **server(arguments)) as sandbox:
            runs = sandbox.runs()
        _print(arguments, runs, _OF_RUNS, [[getattr(each, name) for name in _OF_RUNS.values()] for each in runs])
        return 0
    found = Sandbox.list(**server(arguments))
    titles = "SANDBOX", "NAME", "STATUS", "TEMPLATE", "AGE", "EXPIRES", "RUNNING"
    rows = [
        (each.sandbox, each.name, each.status, each.template, _age(each.age_seconds), each.expires_at, each.running)
        for each in found
    ]
    _print(arguments, found, titles, rows)
    return 0


def print_logs(arguments: argparse.Namespace) -> int:
    """Print a run's output, both streams as they came."""
    server_api = api(arguments)
    try:
        if arguments.follow:
            _follow(Run(AsyncRun(server_api, arguments.run)), as_json=arguments.json)
            return 0
        cursor = 0
        while True:
            path, query = f"/runs/{quote(arguments.run, safe='')}", {"cursor": cursor}
            found = finish(server_api.call("GET", path, query=query))
            for stream in ("stdout", "stderr"):
                if found[stream]:
                    _show(Output(stream, found[stream]), as_json=arguments.json)
            if found["result"] is not None or found["cursor"] == cursor:
                return 0
            cursor = found["cursor"]
    finally:
        finish(server_api.close())


def _follow(run: Run, *, as_json: bool) -> None:
    for event in run.events():
        if not isinstance(event, RunResult):
            _show(event, as_json=as_json)


def _show(output: Output, *, as_json: bool) -> None:
    if as_json:
        print_json(output)
    else:
        write_raw(sys.stdout if output.stream == "stdout" else sys.stderr, output.text)


def close_sandboxes(arguments: argparse.Namespace) -> int:
    """Close each sandbox."""
    server_api = api(arguments)
    try:
        for name in arguments.sandboxes:
            closed = finish(server_api.call("DELETE", f"/sandboxes/{quote(name, safe='')}", query={"force": "true"}))
            if arguments.json:
                print_json(closed)
            else:
                print_table([f"closed {name}"], [])
    finally:
        finish(server_api.close())
    return 0


def show_pools(arguments: argparse.Namespace) -> int:
    """List pools, after one is scaled."""
    server_api = api(arguments)
    try:
        if arguments.pool is not None:
            body = {"replicas": arguments.replicas, "tenant": arguments.tenant}
            pools = [finish(server_api.call("PATCH", f"/pools/{quote(arguments.pool, safe='')}", body))]
        else:
            pools = finish(server_api.pages("/pools", "pools", {"tenant": arguments.tenant}))
    finally:
        finish(server_api.close())
    names = "pool", "template", "replicas", "existing", "ready", "reason"
    _print(arguments, pools, [name.upper() for name in names], [[each.get(name) for name in names] for each in pools])
    return 0


def _print(arguments: argparse.Namespace, found: Any, titles: Any, rows: Any) -> None:
    if arguments.json:
        print_json(found)
    else:
        print_table(list(titles), rows)


def _age(seconds: float) -> str:
    return str(timedelta(seconds=int(seconds)))
