"""The command of `sandpod verify`: what it says beside its rows."""

import argparse
from pathlib import Path

import pytest

from sandpod_gateway.cli import verify


@pytest.mark.parametrize(("chosen", "lines"), [("true", 1), ("false", 0)])
def test_it_warns_of_a_server_that_lets_anybody_in(
    chosen: str, lines: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(f"auth: {{allow_anonymous: {chosen}}}\n")
    _, collecting = verify._local(argparse.Namespace(config=tmp_path / "config.yaml"))
    collecting.close()
    assert capsys.readouterr().err.count("auth.allow_anonymous is set: whoever reaches this server") == lines
