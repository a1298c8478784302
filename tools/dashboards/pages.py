"""What the dashboards show."""

from typing import Final

from dashboards.making import RATE, Page, Panel, Variable, quantiles

_HTTP: Final = "http_server_request_duration_seconds"
_O: Final = "sandpod_operator"
_G: Final = 'namespace="$namespace"'
_S: Final = 'namespace=~"$sandboxes"'
_T: Final = 'namespace="$namespace", tenant=~"$tenant"'
_P: Final = 'namespace="$sandboxes", pod="$pod", container="sandbox"'
_FAULTS: Final = 'code=~"backend_error|backend_unavailable|execution_failed|sandbox_lost"'
_HITS: Final = 'origin="pool"'
_NAMESPACE: Final = Variable(
    name="namespace", label="Release", query="label_values(sandpod_operator_leader, namespace)"
)
_SANDBOXES: Final = Variable(
    name="sandboxes",
    label="Sandboxes' namespaces",
    query="label_values(sandpod_pool_wanted, namespace)",
    several=True,
)


def _rate(metric: str, by: str, selector: str = _G) -> tuple[str, str]:
    legend = " ".join(f"{{{{{label.strip()}}}}}" for label in by.split(","))
    return f"sum by ({by}) (rate({metric}{{{selector}}}{RATE}))", legend


def _part(metric: str, which: str, selector: str) -> str:
    """Return the query for the part that some of a counter's series have, over all the time that is shown."""
    some = f"(sum(increase({metric}{{{selector}, {which}}}[$__range])) or vector(0))"
    return f"{some} / sum(increase({metric}{{{selector}}}[$__range]))"


def _process(selector: str) -> list[Panel]:
    return [
        Panel(title="Processor", unit="short", queries=[_rate("process_cpu_seconds_total", "pod", selector)]),
        Panel(title="Memory", unit="bytes", queries=[(f"process_resident_memory_bytes{{{selector}}}", "{{pod}}")]),
        Panel(title="Open files", queries=[(f"process_open_fds{{{selector}}}", "{{pod}}")]),
    ]


def _number(title: str, query: str, unit: str = "short") -> Panel:
    return Panel(title=title, queries=[(query, title)], unit=unit, number=True)


FLEET: Final = Page(
    uid="sandpod-fleet",
    title="Sandpod / Fleet",
    text="All sandboxes of a release, and how callers are served.",
    variables=[_NAMESPACE, _SANDBOXES],
    rows={
        "Now": [
            _number("Alerts that fire", 'count(ALERTS{alertname=~"Sandpod.*", alertstate="firing"}) or vector(0)'),
            _number("Runs", f"sum(sandpod_active_runs{{{_G}}})"),
            _number("Streams", f"sum(sandpod_open_streams{{{_G}}})"),
            _number("Warm sandboxes", f"sum(sandpod_pool_ready{{{_S}}})"),
            _number("Calls that fail by the server", _part("sandpod_tool_calls_total", _FAULTS, _G), "percentunit"),
            _number("Claims that find a warm one", _part("sandpod_pool_claims_total", _HITS, _S), "percentunit"),
        ],
        "Tools": [
            Panel(title="Calls", unit="reqps", queries=[_rate("sandpod_tool_calls_total", "tool")]),
            Panel(title="Calls by error", unit="reqps", queries=[_rate("sandpod_tool_calls_total", "code")]),
            Panel(title="Time of calls", unit="s", queries=quantiles("sandpod_tool_call_seconds", "tool", _G)),
        ],
        "Ways in": [
            Panel(title="Requests", unit="reqps", queries=[_rate(f"{_HTTP}_count", "face")]),
            Panel(
                title="Answers by status",
                unit="reqps",
                queries=[_rate(f"{_HTTP}_count", "face, http_response_status_code")],
            ),
            Panel(
                title="Time of requests",
                unit="s",
                queries=quantiles(_HTTP, "face", _G),
            ),
            Panel(
                title="MCP by method",
                unit="reqps",
                queries=[_rate("mcp_server_operation_duration_seconds_count", "mcp_method_name, error_type")],
            ),
            Panel(
                title="Time of MCP",
                unit="s",
                queries=quantiles("mcp_server_operation_duration_seconds", "mcp_method_name", _G),
            ),
            Panel(title="Refusals", unit="reqps", queries=[_rate("sandpod_refusals_total", "code")]),
        ],
        "Claims": [
            Panel(title="Claims, and how they were met", unit="reqps", queries=[_rate("sandpod_claims_total", "how")]),
            Panel(title="Time of claims", unit="s", queries=quantiles("sandpod_claim_seconds", "how", _G)),
            Panel(
                title="Refused claims",
                unit="reqps",
                queries=[_rate("sandpod_claims_total", "code", f'{_G}, how="refused"')],
            ),
            Panel(
                title="Pools",
                queries=[
                    (f"sandpod_pool_wanted{{{_S}}}", "{{namespace}}/{{pool}} wanted"),
                    (f"sandpod_pool_ready{{{_S}}}", "{{namespace}}/{{pool}} ready"),
                ],
            ),
            Panel(
                title="Claims of pools", unit="reqps", queries=[_rate("sandpod_pool_claims_total", "pool, origin", _S)]
            ),
            Panel(
                title="Who waits for a place",
                queries=[(f"sandpod_operator_line_waiting{{{_S}}}", "{{namespace}}: {{waiter}}, {{lacks}}")],
            ),
        ],
        "Runs and streams": [
            Panel(title="Runs", unit="reqps", queries=[_rate("sandpod_runs_total", "language, outcome")]),
            Panel(title="Time of runs", unit="s", queries=quantiles("sandpod_run_seconds", "language", _G)),
            Panel(title="Streams", unit="cps", queries=[_rate("sandpod_streams_total", "event")]),
        ],
        "Isolation and ends": [
            Panel(title="Ends by reason", unit="cps", queries=[_rate("sandpod_sandboxes_ended_total", "reason")]),
            Panel(title="Probes that failed", unit="cps", queries=[_rate("sandpod_probe_failures_total", "probe")]),
            Panel(
                title="Policies of others that open something",
                queries=[(f"sum(sandpod_network_policy_widening{{{_S}}}) or vector(0)", "policies")],
            ),
        ],
        "Gateways": _process('namespace="$namespace", pod=~".*gateway.*"'),
    },
)

TENANT: Final = Page(
    uid="sandpod-tenant",
    title="Sandpod / Tenant",
    text="What one tenant uses, and what waits for it. Without tenants there is one with an empty name.",
    variables=[
        _NAMESPACE,
        Variable(
            name="tenant",
            label="Tenant",
            query='label_values(sandpod_usage_calls_total{namespace="$namespace"}, tenant)',
            several=True,
        ),
    ],
    rows={
        "Use": [
            Panel(title="Calls", unit="reqps", queries=[_rate("sandpod_usage_calls_total", "tenant", _T)]),
            Panel(title="Runs", unit="reqps", queries=[_rate("sandpod_usage_runs_total", "tenant", _T)]),
            Panel(title="Processors", queries=[_rate("sandpod_usage_cpu_seconds_total", "tenant", _T)]),
            Panel(
                title="Sandboxes",
                text="Seconds of sandboxes in a second: how many there are, but for suspended ones.",
                queries=[_rate("sandpod_usage_sandbox_seconds_total", "tenant", _T)],
            ),
            Panel(title="Sandboxes with a run", queries=[_rate("sandpod_usage_busy_seconds_total", "tenant", _T)]),
            Panel(
                title="Memory held",
                unit="bytes",
                queries=[_rate("sandpod_usage_memory_byte_seconds_total", "tenant", _T)],
            ),
            Panel(title="Sent in", unit="Bps", queries=[_rate("sandpod_usage_received_bytes_total", "tenant", _T)]),
            Panel(title="Read out", unit="Bps", queries=[_rate("sandpod_usage_sent_bytes_total", "tenant", _T)]),
            Panel(
                title="Warm sandboxes",
                queries=[(f"sum by (tenant, template) (sandpod_warm_sandboxes{{{_T}}})", "{{template}}")],
            ),
        ],
    },
)

SANDBOX: Final = Page(
    uid="sandpod-sandbox",
    title="Sandpod / One sandbox",
    text="One sandbox's pod, as the kubelet sees it (cAdvisor): Sandpod's own metrics name no sandbox.",
    variables=[
        Variable(name="sandboxes", label="Namespace", query="label_values(sandpod_pool_wanted, namespace)"),
        Variable(
            name="pod",
            label="Sandbox",
            query='label_values(container_memory_working_set_bytes{namespace="$sandboxes", container="sandbox"}, pod)',
        ),
    ],
    rows={
        "Pod": [
            Panel(
                title="Processors",
                queries=[(f"sum(rate(container_cpu_usage_seconds_total{{{_P}}}{RATE}))", "used")],
            ),
            Panel(
                title="Memory",
                unit="bytes",
                queries=[
                    (f"container_memory_working_set_bytes{{{_P}}}", "used"),
                    (f"container_spec_memory_limit_bytes{{{_P}}}", "limit"),
                ],
            ),
            Panel(title="Processes", queries=[(f"container_processes{{{_P}}}", "processes")]),
            Panel(
                title="Held back by the processor limit",
                unit="percentunit",
                queries=[
                    (
                        (
                            f"sum(rate(container_cpu_cfs_throttled_periods_total{{{_P}}}{RATE}))"
                            f" / (sum(rate(container_cpu_cfs_periods_total{{{_P}}}{RATE})) > 0) or vector(0)"
                        ),
                        "part of the time",
                    )
                ],
            ),
            Panel(title="Killed for memory", queries=[(f"container_oom_events_total{{{_P}}}", "processes")]),
            Panel(title="Age", unit="s", queries=[(f"time() - container_start_time_seconds{{{_P}}}", "age")]),
        ],
    },
)

OPERATOR: Final = Page(
    uid="sandpod-operator",
    title="Sandpod / Operator",
    text="Whether the operator keeps up.",
    variables=[_NAMESPACE, _SANDBOXES],
    rows={
        "Now": [
            _number("Active replicas", f"sum(sandpod_operator_leader{{{_G}}})"),
            _number("Keys that wait", f"sum(sandpod_operator_queue_depth{{{_G}}})"),
            _number("Oldest heartbeat", f"max(sandpod_operator_watch_age_seconds{{{_S}}})", "s"),
            _number("Claims that wait", f'sum(sandpod_operator_line_waiting{{{_S}, waiter="claim"}})'),
        ],
        "Reconciles": [
            Panel(
                title="Reconciles", unit="reqps", queries=[_rate("sandpod_operator_reconciles_total", "kind, result")]
            ),
            Panel(
                title="Time of reconciles",
                unit="s",
                queries=quantiles(f"{_O}_reconcile_seconds", "kind", _G),
            ),
            Panel(title="Wait for a worker", unit="s", queries=quantiles("sandpod_operator_queue_seconds", "kind", _G)),
            Panel(
                title="Writes to the API server",
                unit="reqps",
                queries=[_rate("sandpod_operator_api_writes_total", "verb, kind, result")],
            ),
            Panel(
                title="Events not posted", unit="cps", queries=[_rate("sandpod_operator_events_dropped_total", "pod")]
            ),
            Panel(
                title="Heartbeats", unit="s", queries=[(f"sandpod_operator_watch_age_seconds{{{_S}}}", "{{namespace}}")]
            ),
        ],
        "Sandboxes": [
            Panel(title="Start to ready", unit="s", queries=quantiles("sandpod_sandbox_start_seconds", "origin", _G)),
            Panel(
                title="Wait for a place", unit="s", queries=quantiles("sandpod_operator_line_wait_seconds", "lacks", _G)
            ),
            Panel(title="Ends by reason", unit="cps", queries=[_rate("sandpod_sandboxes_ended_total", "reason")]),
        ],
        "Process": _process('namespace="$namespace", pod=~".*operator.*"'),
    },
)

PAGES: Final = {"fleet": FLEET, "tenant": TENANT, "sandbox": SANDBOX, "operator": OPERATOR}
