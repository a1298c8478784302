"""What a session may give as secrets, and that no refusal and no representation has a value in it."""

from typing import Any, Final

import pytest

from sandpod_api.templates import MAX_SECRETS
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.mcp import arguments
from sandpod_gateway.mcp.toolbox import SetTool
from sandpod_gateway.runs.request import OTHER_NAMES
from sandpod_gateway.sandboxes.secrets import SecretSet
from sandpod_gateway.secrets.values import (
    MAX_VALUE,
    MAX_VALUES,
    Reference,
    Secret,
    bounded,
    dump,
    load,
    parse_secrets,
    resolved,
)
from support.gateway.fake_gateway import Place

VALUE: Final = "v-a-l-u-e-1234"
TOOLS: Final = ("run_python_code", "start_run")


def parse(given: Any, *, masked: bool = True) -> tuple[Secret, ...]:
    return parse_secrets(given, TOOLS, OTHER_NAMES, masked=masked)


def test_secret_is_a_value_or_a_value_with_its_scope() -> None:
    scoped = {"value": VALUE, "tools": ["start_run"], "languages": ["bash", "ruby"]}
    plain, limited = parse({"A": VALUE, "B": scoped})
    assert (plain.value, plain.tools, plain.languages) == (VALUE, frozenset(), frozenset())
    assert limited.tools == {"start_run"}
    assert limited.languages == {"shell", "ruby"}
    assert [plain.is_for(tool, "python") for tool in (*TOOLS, "")] == [True, True, True]
    assert limited.is_for("start_run", "shell")
    assert not limited.is_for("start_run", "python")
    assert not limited.is_for("run_python_code", "shell")


def test_secret_can_refer_to_one_that_the_administrator_keeps() -> None:
    [secret] = parse({"A": {"secret": "vault", "key": "token", "tools": ["start_run"]}})
    assert secret == Secret(name="A", reference=Reference("vault", "token"), tools=frozenset({"start_run"}))


def test_value_that_is_not_masked_may_be_short_and_stays_so_when_it_is_kept() -> None:
    [hidden], [plain] = parse({"A": VALUE}), parse({"B": {"value": "1"}}, masked=False)
    assert (hidden.masked, plain.masked, plain.value) == (True, False, "1")
    assert load(dump((hidden, plain))) == (hidden, plain)
    assert SecretSet(from_session=(plain,)).masker is None
    with pytest.raises(SandpodError, match="is missing, unknown"):
        parse({"A": {"value": VALUE, "masked": False}})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        *(
            ({"A": wrong}, "needs either a value, or a Secret and its key")
            for wrong in (
                {},
                {"secret": "vault"},
                {"key": "token"},
                {"value": VALUE, "secret": "vault", "key": "token"},
                {"value": VALUE, "key": "token"},
            )
        ),
        ({"A": {"secret": "../vault", "key": "token"}}, "secret is missing, unknown or of another form"),
        ({"A": {"secret": "vault", "key": "a/b"}}, "key is missing, unknown or of another form"),
        ({VALUE: "A_NAME_12"}, "name is not that of an environment variable"),
        ({"": VALUE}, "name is not that"),
        ({"A=B": VALUE}, "name is not that"),
        ({"A\n": VALUE}, "name is not that"),
        ({"N" * 129: VALUE}, "name is not that"),
        *(({name: VALUE}, f"name {name} is reserved") for name in ("PATH", "LD_PRELOAD", "SANDPOD_X", "PYTHONPATH")),
        ({"A": VALUE[:7]}, "fewer than 8 bytes"),
        ({"A": "  short    \n"}, "fewer than 8 bytes"),
        ({"A": "abababababab"}, "fewer than 4 different"),
        ({"A": f"{VALUE}\0"}, "NUL"),
        ({"A": f"{VALUE}\ud800"}, "not valid Unicode"),
        ({"A": VALUE * (MAX_VALUE // 10)}, f"over {MAX_VALUE} bytes"),
        (dict.fromkeys("ABC", VALUE * 250), f"over {MAX_VALUES} bytes"),
        ({f"A{i}": VALUE for i in range(MAX_SECRETS + 1)}, f"over {MAX_SECRETS} secrets"),
        ({"A": {"value": VALUE, "tools": ["read_file"]}}, "names a tool that runs nothing"),
        ({"A": {"value": VALUE, "tools": VALUE}}, "tools is missing, unknown or of another form"),
        ({"A": {"value": VALUE, "languages": [f"{VALUE}!"]}}, "languages is missing"),
        ({"A": {"value": VALUE, VALUE: 1}}, "it is missing"),
        ({"A": {"value": [VALUE]}}, "value is missing"),
        ({"A": 12345678}, "it is missing"),
        ({"A": None}, "it is missing"),
    ],
)
def test_wrong_secret_is_refused_without_a_word_of_its_value(given: Any, words: str) -> None:
    with pytest.raises(SandpodError) as refused:
        parse(given)
    problem = refused.value.problem()
    assert problem.error == "invalid_argument"
    assert words in problem.message
    assert problem.next
    shown = f"{problem!r} {refused.value!r} {refused.value.__cause__!r}"
    assert VALUE not in shown
    assert "12345678" not in shown


@pytest.mark.promise("secret-hidden")
def test_no_representation_has_a_value_in_it() -> None:
    secrets = parse({"A": VALUE})
    assert VALUE not in repr(secrets)
    assert load(dump(secrets)) == secrets
    assert dump(secrets) == dump(load(dump(secrets)))
    for wrong in (b"", b"[]", b'{"A": {}}', f'{{"A": "{VALUE}"}}'.encode()):
        with pytest.raises(ValueError, match=r"^no secrets$") as refused:
            load(wrong)
        assert refused.value.__suppress_context__


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (None, "is not there"),
        (b"\xff" * 9, "is not text"),
        (b"short\n", "fewer than 8"),
        (b"x" * 5000, "over 4096"),
    ],
)
def test_reference_that_leads_to_no_value_has_that_as_its_problem(data: bytes | None, problem: str) -> None:
    found = resolved(Secret(name="A"), data)
    assert problem in found.problem
    assert found.value == ""


def test_line_break_at_the_end_of_a_file_is_none_of_the_value() -> None:
    assert resolved(Secret(name="A"), f"{VALUE}\r\n".encode()) == Secret(name="A", value=VALUE)


def test_secrets_of_a_template_that_are_too_large_together_are_not_all_given() -> None:
    one, two, three = bounded(Secret(name=name, value=VALUE * 200) for name in "ABC")
    assert (one.problem, two.problem) == ("", "")
    assert (three.value, three.problem[:12]) == ("", "is too large")


async def test_tools_by_which_a_secret_can_be_limited_are_those_that_run_something(place: Place) -> None:
    running = [
        tool.name
        for tool in await place.gateway.mcp.list_tools()
        if isinstance(tool, SetTool) and {"code", "command"} & tool.parameters["properties"].keys()
    ]
    assert sorted(arguments.RUN_TOOLS) == sorted(running)
