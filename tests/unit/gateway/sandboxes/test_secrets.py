"""The secrets of a sandbox as its calls get them: from its session and its template, read once, masked everywhere."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import pytest

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.auth.callers import owner_of
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.masking.current import calling, current_call
from sandpod_gateway.sandboxes.secrets import NONE, Secrets
from sandpod_gateway.secrets.values import Reference, Secret

RECORD: Final = SandboxRecord(
    name="sbx-1",
    owner="alice",
    session="",
    template="default",
    network="none",
    status="Ready",
    created=datetime(2026, 1, 1, tzinfo=UTC),
    ttl=60,
    idle_timeout=60,
    has_secrets=True,
)


PLACE: Final = Reference("vault", "key")


class Source:
    """Counts what it is asked; fails with `error`."""

    def __init__(self) -> None:
        self.session: tuple[Secret, ...] = (Secret(name="A", value="session-value-1"),)
        self.template: tuple[Secret, ...] | None = (Secret(name="T", value="template-value"),)
        self.claim: tuple[Secret, ...] = ()
        self.error: SandpodError | None = None
        self.asked: list[str] = []

    async def of_session(self, sandbox: str) -> tuple[Secret, ...]:
        self.asked.append(sandbox)
        if self.error is not None:
            raise self.error
        return self.session

    async def of_claim(self, sandbox: str) -> tuple[Secret, ...]:
        self.asked.append(f"claim of {sandbox}")
        return self.claim

    async def of_template(self, template: str) -> tuple[Secret, ...] | None:
        self.asked.append(template)
        if self.error is not None:
            raise self.error
        return self.template


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def secrets(source: Source) -> Secrets:
    return Secrets(source)


async def test_session_and_template_are_read_once_and_masked_in_each_call(secrets: Secrets, source: Source) -> None:
    for _ in range(2):
        with calling("run_python_code") as call:
            found = await secrets.of(RECORD)
            await secrets.of(RECORD)
            assert len(call.maskers) == 1
            assert current_call().masked(["session-value-1 template-value"]) == ["[secret A] [secret T]"]
        assert found.env("run_python_code", "python") == {"A": "session-value-1", "T": "template-value"}
    assert source.asked == ["default", "sbx-1"]
    assert "value" not in repr(found)


async def test_without_secrets_nothing_is_asked_but_the_template_once(secrets: Secrets, source: Source) -> None:
    source.template = None
    plain = replace(RECORD, has_secrets=False)
    with calling() as call:
        assert [await secrets.of(plain) for _ in range(3)] == [NONE] * 3
        assert call.masked({"a": "session-value-1"}) == {"a": "session-value-1"}
    assert source.asked == ["default"]


async def test_secret_of_the_session_takes_the_place_of_the_templates_and_both_are_masked(
    secrets: Secrets, source: Source
) -> None:
    source.template = (Secret(name="A", value="template-value"),)
    found = await secrets.of(RECORD)
    assert found.env("", "python") == {"A": "session-value-1"}
    assert found.masker is not None
    assert found.masker.text("template-value session-value-1") == "[secret A] [secret A]"


async def test_changed_template_counts_after_the_next_reading_and_one_that_fails_changes_nothing(
    secrets: Secrets, source: Source
) -> None:
    await secrets.of(RECORD)
    source.template = (Secret(name="T", value="rotated-value"),)
    assert (await secrets.of(RECORD)).env("", "")["T"] == "template-value"
    await secrets.reread()
    assert (await secrets.of(RECORD)).env("", "")["T"] == "rotated-value"
    source.error = SandpodError(ErrorCode.BACKEND_UNAVAILABLE, "It is down.", next_step="Wait.")
    await secrets.reread()
    assert (await secrets.of(RECORD)).env("", "")["T"] == "rotated-value"
    source.error, source.template = None, None
    await secrets.reread()
    assert (await secrets.of(RECORD)).env("", "")["T"] == "rotated-value"
    source.asked.clear()
    await secrets.reread()
    await secrets.reread()
    await secrets.reread()
    assert source.asked == ["default"]  # it was used once since


async def test_reference_that_leads_nowhere_stops_the_runs_that_would_get_it_and_no_other(
    secrets: Secrets, source: Source
) -> None:
    source.template = (Secret(name="T", languages=frozenset({"shell"}), problem="is not there"),)
    found = await secrets.of(RECORD)
    assert found.env("run_python_code", "python") == {"A": "session-value-1"}
    with pytest.raises(SandpodError) as refused:
        found.env("run_shell_command", "shell")
    assert refused.value.code == ErrorCode.NOT_FOUND
    assert refused.value.message == "The secret T of the sandbox's template is not there."


async def test_what_a_claim_refers_to_is_between_the_templates_and_the_sessions_and_is_read_again(
    secrets: Secrets, source: Source
) -> None:
    record = replace(RECORD, refers_to_secrets=True)
    source.claim = tuple(Secret(name=name, value=f"claim-value-{name}", reference=PLACE) for name in "ACT")
    for _ in range(2):
        found = await secrets.of(record)
        env = found.env("", "python")
        assert env == {"A": "session-value-1", "C": "claim-value-C", "T": "claim-value-T"}
        assert found.masker is not None
        assert found.masker.text("claim-value-A template-value") == "[secret A] [secret T]"
    assert source.asked == ["default", "claim of sbx-1", "sbx-1"]
    given = Secret(name="C", reference=PLACE)
    source.claim = (replace(given, problem="is not there"),)
    await secrets.reread()
    with pytest.raises(SandpodError, match=r"The secret C of the sandbox is not there\."):
        (await secrets.of(record)).env("", "python")
    await secrets.confirm(record, (*source.session, given))
    for other in (given, replace(given, reference=Reference("other", "key"))):
        with pytest.raises(SandpodError, match="other secrets"):
            await secrets.confirm(record, (other,))


async def test_what_a_sandbox_was_claimed_with_here_is_not_read_and_used_for_that_sandbox_alone(
    secrets: Secrets, source: Source
) -> None:
    given = (Secret(name="B", value="given-value-1"), Secret(name="C", reference=PLACE))
    secrets.claimed(RECORD, given)
    secrets.claimed(replace(RECORD, name="sbx-2", has_secrets=False), given)
    for _ in range(2):
        assert (await secrets.of(RECORD)).env("", "python") == {"B": "given-value-1", "T": "template-value"}
    later = replace(RECORD, created=datetime(2026, 1, 2, tzinfo=UTC))
    assert (await secrets.of(later)).env("", "python") == {"A": "session-value-1", "T": "template-value"}
    assert source.asked == ["default", "sbx-1"]
    assert not secrets._given


async def test_values_that_can_not_be_read_stop_the_call(secrets: Secrets, source: Source) -> None:
    source.error = SandpodError(ErrorCode.BACKEND_UNAVAILABLE, "It is down.", next_step="Wait.")
    with pytest.raises(SandpodError, match="It is down"):
        await secrets.of(RECORD)
    source.error = None
    assert (await secrets.of(RECORD)).masker is not None


async def test_named_sandbox_that_is_there_takes_the_same_secrets_and_no_others(
    secrets: Secrets, source: Source
) -> None:
    await secrets.confirm(RECORD, source.session)
    await secrets.confirm(RECORD, ())
    for record, given in (
        (RECORD, (Secret(name="A", value="other-value-12"),)),
        (RECORD, (Secret(name="A", value="session-value-1", tools=frozenset({"start_run"})),)),
        (replace(RECORD, has_secrets=False), source.session),
    ):
        with pytest.raises(SandpodError) as refused:
            await secrets.confirm(record, given)
        assert refused.value.code == ErrorCode.INVALID_ARGUMENT
        assert "value-1" not in str(refused.value)


async def test_later_sandbox_of_the_same_name_has_its_own_secrets(secrets: Secrets, source: Source) -> None:
    await secrets.of(RECORD)
    source.session = (Secret(name="A", value="another-value"),)
    later = replace(RECORD, created=datetime(2026, 1, 2, tzinfo=UTC))
    assert (await secrets.of(later)).env("run_python_code", "python")["A"] == "another-value"
    assert (await secrets.of(RECORD)).env("run_python_code", "python")["A"] == "session-value-1"


async def test_templates_of_one_name_in_two_tenants_have_their_own_secrets(secrets: Secrets, source: Source) -> None:
    record = replace(RECORD, has_secrets=False)
    for tenant in ("", "a", "b"):
        await secrets.of(replace(record, owner=owner_of(tenant, "alice"), name=f"sbx-{tenant}"))
    assert source.asked == ["default", "a.default", "b.default"]
