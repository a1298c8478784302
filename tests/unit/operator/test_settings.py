from importlib.metadata import version
from pathlib import Path

import pytest
from pydantic import ValidationError

from sandpod_operator.__main__ import read_settings
from sandpod_operator.controllers.watches import create_settings
from sandpod_operator.settings import OperatorSettings


def read(monkeypatch: pytest.MonkeyPatch, **values: str) -> OperatorSettings:
    for name, value in {"NAMESPACES": "boxes", **values}.items():
        monkeypatch.setenv(f"SANDPOD_OPERATOR_{name}", value)
    return OperatorSettings()


def test_namespaces_are_separated_by_commas_and_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, NAMESPACES=" a, b ,a,").namespaces == ("a", "b")


def test_answer_that_names_a_slow_webhook_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    longest_of_a_webhook = 30  # seconds, as Kubernetes validates timeoutSeconds
    assert read(monkeypatch).request_timeout > longest_of_a_webhook


@pytest.mark.parametrize("value", ["", " , ", "team-*", "Not_A_Name"])
def test_namespaces_that_are_none_are_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    with pytest.raises(ValidationError, match="namespaces"):
        read(monkeypatch, NAMESPACES=value)


def test_api_server_is_where_kubernetes_says_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert read(monkeypatch).api_server == ""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    assert read(monkeypatch).api_server == "10.96.0.1:6443"


def test_runner_is_of_the_operators_own_version_unless_it_is_told_another(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch).runner_image == f"sandpod/sandbox:{version('sandpod')}"
    assert read(monkeypatch, RUNNER_IMAGE="r.example/s:2").runner_image == "r.example/s:2"


def test_every_process_has_an_identity_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch).identity != read(monkeypatch).identity


@pytest.mark.parametrize(
    "values",
    [
        {"LEASE_RENEW_DEADLINE": "20"},
        {"LEASE_RETRY": "12"},
        {"HEARTBEAT_TIMEOUT": "10"},
        {"WORKERS": "0"},
        {"LOG_FORMAT": "xml"},
        # Every sandbox would end at its start.
        {"MORE_PROBES": "192.0.2.1:443,192.0.2.2"},
        {"MORE_PROBES": "192.0.2.1:70000"},
        {"CLUSTER_DNS": "10.96.0.10:0"},
        {"PEER": ":8081"},
        {"API_SERVER": "10.96.0.1:https"},
    ],
)
def test_settings_that_make_no_sense_are_refused(monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        read(monkeypatch, **values)


def test_wrong_setting_is_said_by_its_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SANDPOD_OPERATOR_NAMESPACES", "boxes")
    monkeypatch.setenv("SANDPOD_OPERATOR_WORKERS", "many")
    assert read_settings() is None
    assert capsys.readouterr().err.startswith("sandpod-operator: SANDPOD_OPERATOR_WORKERS: ")


def test_settings_file_is_read_and_the_environment_takes_precedence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("namespaces: [a, b]\nretention: 1000000\nresync_interval: 60\n", encoding="utf-8")
    monkeypatch.setenv("SANDPOD_OPERATOR_RESYNC_INTERVAL", "90")
    found = read_settings(file)
    assert found is not None
    assert (found.namespaces, found.retention, found.resync_interval) == (("a", "b"), 1_000_000, 90)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "can't be read: [Errno 2]"),
        ("[a", "can't be read: while parsing a flow sequence"),
        (b"\xff\xfe\xff", "can't be read: "),
        ("[a]", "must be a YAML mapping of settings"),
        ("", "must be a YAML mapping of settings"),
        ("namespaces: [a]\nretentoin: 5\n", "SANDPOD_OPERATOR_RETENTOIN: Extra inputs are not permitted"),
        ("namespaces: [A]\n", "SANDPOD_OPERATOR_NAMESPACES: "),
    ],
)
def test_wrong_settings_file_is_refused_with_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | bytes | None, said: str
) -> None:
    file = tmp_path / "config.yaml"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert read_settings(file) is None
    printed = capsys.readouterr().err
    assert printed.startswith("sandpod-operator: ")
    assert said in printed


def test_every_field_says_what_it_is() -> None:
    assert [name for name, field in OperatorSettings.model_fields.items() if not field.description] == []


def test_kopf_watches_only_what_is_ours_and_looks_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    made = create_settings(read(monkeypatch))
    ours = "app.kubernetes.io/managed-by=sandpod"
    assert made.watching.label_selectors["pods"] == f"{ours},sandpod.dev/sandbox"
    assert "networkpolicies" not in made.watching.label_selectors  # those of others can open what ours close
    assert made.watching.label_selectors["leases"] == ours
    assert made.scanning.disabled
    assert not made.posting.enabled


def test_kopf_holds_few_of_many_objects_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = create_settings(read(monkeypatch))
    assert made.watching.chunk_size == 500
    assert made.queueing.idle_timeout < 1
