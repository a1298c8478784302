"""What the client prints, parses and completes."""

import argparse
import io
import sys
from collections.abc import AsyncIterator
from dataclasses import fields
from pathlib import Path

import pytest

from sandpod import errors, results, runs
from sandpod.cli import completion, files, main, output, server_program
from sandpod.cli.run import exit_code_of
from sandpod.terminal import Exit
from sandpod_gateway.api import results as server_results
from sandpod_gateway.api import run_results

OWN = {"results", "pictures", "dropped_bytes"}  # made of what the server tells otherwise


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (results.RunResult, run_results.RunResult),
        (results.RunInfo, run_results.RunInfo),
        (results.ContextInfo, run_results.ContextInfo),
        (results.SandboxInfo, server_results.SandboxInfo),
        (results.FileEntry, server_results.FileEntry),
        (results.PackageInfo, server_results.PackageInfo),
        (results.Artifact, server_results.Artifact),
    ],
)
def test_every_field_is_one_of_the_servers(ours: type, theirs: type[server_results.ResultModel]) -> None:
    assert {field.name for field in fields(ours)} - OWN <= theirs.model_fields.keys()


def test_every_code_of_the_server_has_an_error_and_a_newer_one_too() -> None:
    for code in server_results.ErrorCode:
        found = errors.refused({"error": code, "message": "It is so.", "next": "Do that."}, code.http_status)
        assert (found.code, str(found)) == (code, "It is so. Do that.")
    assert type(errors.refused({"error": "not_found"}, 404)) is errors.NotFoundError
    assert type(errors.refused({"error": "newer"})) is errors.SandpodError


async def test_events_are_read_whatever_pieces_they_come_in() -> None:
    text = b'id: 3\nevent: output\ndata: {"stdout": "a"}\n\n: waiting\n\nevent: result\ndata: {"x": 1}\n\nevent: cut'

    for size in (1, 7, len(text)):

        class Answer:
            response = None
            at = size

            async def pieces(self) -> AsyncIterator[bytes]:
                for begin in range(0, len(text), self.at):
                    yield text[begin : begin + self.at]

        found = [event async for event in runs._events(Answer())]  # type: ignore[arg-type]
        assert found == [("output", 3, {"stdout": "a"}), ("result", None, {"x": 1})]


def test_nothing_that_could_steer_a_terminal_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = "a\x1b[2J\n\u202eb"
    output.print_table(("NAME",), [(hostile,), (None,)])
    output.say(hostile)
    output.print_json({"name": hostile})
    shown = capsys.readouterr()
    assert (shown.out + shown.err).replace("\n", "").isprintable()
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stdout", screen)
    output.print_lines(hostile)
    monkeypatch.setattr(screen, "isatty", lambda: True)
    output.print_lines(f"\n{hostile}\n")
    assert screen.getvalue() == f"{hostile}\na\\x1b[2J\n\\u202eb\n"


def test_progress_is_a_line_on_a_terminal_and_nothing_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    output.Progress("a", quiet=False)(1, 1)
    assert screen.getvalue() == ""
    monkeypatch.setattr(screen, "isatty", lambda: True)
    progress = output.Progress("a\x1b", quiet=False)
    progress(2**20, 2**20)
    progress.end()
    assert "1.0 of 1.0 MiB" in screen.getvalue()
    assert "\x1b]" not in screen.getvalue()
    assert screen.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (Exit(3, None, "error"), 3),
        (Exit(None, "SIGKILL", "out_of_memory"), 137),
        (Exit(None, "SIGKILL", "timeout"), 124),
        (Exit(None, None, "sandbox_lost"), 1),
    ],
)
def test_an_exit_code_is_what_a_shell_would_say(ended: Exit, code: int) -> None:
    assert exit_code_of(ended) == code


def test_paths_in_sandboxes_are_told_apart_as_scp_does_and_lead_nowhere_else(tmp_path: Path) -> None:
    found = {text: files.parsed(text) for text in ("a:b", ":b", ":", "./a:b", "a/b:c", "a")}
    there = [(text, each.sandbox, each.path) for text, each in found.items() if each is not None]
    assert there == [("a:b", "a", "b"), (":b", "default", "b"), (":", "default", "")]
    (tmp_path / "link").symlink_to("/etc")
    for name in ("..", ".", "", "a/b", "/", "a\0", "link"):
        with pytest.raises(errors.InvalidArgumentError, match="lead out"):
            files._below(tmp_path, name)


def test_words_are_completed_and_each_shell_has_a_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("SANDPOD_PROFILES", str(tmp_path / "none"))

    def asked(*words: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["sandpod", "completion", *words])
        with pytest.raises(SystemExit) as ended:
            main.main()
        assert not ended.value.code
        return capsys.readouterr().out.splitlines()

    assert asked("--words", "s") == ["serve", "setup", "shell", "stdio"]
    assert asked("--words", "cp", "--p") == ["--profile"]
    assert "--json" in asked("--words", "ps", "--")
    assert asked("--words", "ps", "--profile", "") == ["local"]
    assert asked("--words", "nonsense", "") == []
    assert asked("--words", "keys", "r") == ["revoke", "rotate"]
    assert {"--file", "--url", "--read-only"} <= {*asked("--words", "keys", "create", "--")}
    assert asked("--words", "usage", "--by", "") == ["key", "sandbox", "tenant", "user"]
    assert asked("--words", "completion", "z") == ["zsh"]
    for shell in completion._SCRIPTS:
        assert "sandpod completion --words" in "\n".join(asked(shell))


def test_a_command_of_the_server_says_what_to_install_where_there_is_no_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server_program, "entry_points", lambda **_: ())
    commands = [[name] for name in server_program.SERVER_COMMANDS]
    commands += [["keys", "list", "--file", "k"], ["usage", "--directory", "u"], ["audit", "verify", "a"]]
    for command in commands:
        monkeypatch.setattr(sys, "argv", ["sandpod", *command])
        with pytest.raises(SystemExit) as ended:
            main.main()
        assert (ended.value.code, capsys.readouterr().err.count("pip install sandpod\n")) == (2, 1)
    assert isinstance(main.parser(), argparse.ArgumentParser)
