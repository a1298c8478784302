"""Which running server the client believes: one of this user's, that lives, on this machine."""

import fcntl
import json
import os
import stat
from pathlib import Path

import pytest

from sandpod import endpoint, running_server
from sandpod.endpoint import Endpoint
from sandpod_gateway.cli.announcement import announced
from sandpod_gateway.settings import AuthSettings, Settings

HERE = Settings(backend="local", port=1234)
URL = "http://127.0.0.1:1234"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("SANDPOD_URL", "SANDPOD_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SANDPOD_PROFILES", str(tmp_path / "profiles.json"))
    monkeypatch.setenv("SANDPOD_KEY", "of-another-server")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return running_server.folder()


def test_a_server_without_keys_is_used_while_it_lives_and_gets_no_key(folder: Path) -> None:
    assert running_server.find() is None
    with announced(HERE):
        [file] = folder.iterdir()
        assert [stat.S_IMODE(each.stat().st_mode) for each in (file, folder)] == [0o600, 0o700]
        assert endpoint.is_chosen()
        assert endpoint.find() == Endpoint(URL)
        endpoint.write_profile("team", {"url": "https://team.example"}, default=True)
        assert endpoint.find() == Endpoint("https://team.example")
    assert running_server.find() is None
    assert list(folder.iterdir()) == []


def test_servers_with_keys_or_in_a_cluster_or_with_no_place_for_a_file_say_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed = Settings(backend="local", auth=AuthSettings(keys_file=Path("/keys.yaml")))
    anonymous = Settings(backend="local", auth=AuthSettings(allow_anonymous=True))
    for settings in (keyed, anonymous, Settings(backend="kubernetes")):
        with announced(settings):
            assert not folder.exists()
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/none")
    with announced(HERE):
        assert running_server.find() is None


def test_words_that_no_living_server_of_this_users_holds_are_not_believed(folder: Path) -> None:
    with announced(HERE):
        [file] = folder.iterdir()
        text, left = file.read_text(), folder / "1.json"
        file.rename(folder / "hidden")
        left.write_text(text)  # as of a server that was killed
        (folder / "2.json").symlink_to(folder / "hidden")
        (folder / "3.json").mkdir()
        os.mkfifo(folder / "4.json")
        assert running_server.find() is None
        (folder / "hidden").rename(file)
        for content in ("{", "[]", "{}", *(json.dumps(json.loads(text) | each) for each in STRANGE)):
            file.write_text(content)
            assert running_server.find() is None, content
        file.write_text(text)
        for loose in (folder, file):
            mode = loose.stat().st_mode
            loose.chmod(0o777)
            assert running_server.find() is None
            loose.chmod(mode)
        assert running_server.find() == URL
    with announced(HERE):
        assert not left.exists()
    assert running_server.find() is None


STRANGE = ({"url": "http://192.0.2.1"}, {"url": "http://sandpod.example"}, {"url": "http://["}, {"host": "another"})


def test_of_several_the_last_is_used(folder: Path) -> None:
    with announced(HERE):
        older = next(folder.iterdir()).rename(folder / "1.json")
        os.utime(older, (1, 1))
        with announced(HERE.model_copy(update={"port": 4321})):
            assert older.exists()  # it is held
            assert running_server.find() == "http://127.0.0.1:4321"
        with older.open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert running_server.find() == URL
