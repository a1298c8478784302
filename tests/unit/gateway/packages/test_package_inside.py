"""Wheels, as the program that runs in sandboxes installs them."""

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from support.package_program import install_wheels
from support.servers.package_index import wheel

PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"
LIBRARY = f"lib/{PYTHON}/site-packages"
# What every installer writes in its own way.
OWN = {"INSTALLER", "RECORD", "REQUESTED", "SANDPOD-SHA256", "direct_url.json"}


def tree(base: Path) -> dict[str, tuple[bytes, int]]:
    """Return content and mode of all files by path."""
    return {
        str(path.relative_to(base)): (path.read_bytes(), path.stat().st_mode & 0o777)
        for path in base.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def rebuilt(data: bytes, path: Path, change: Callable[[zipfile.ZipFile], None]) -> bytes:
    """Return a wheel that was changed."""
    path.write_bytes(data)
    with zipfile.ZipFile(path, "a") as archive:
        change(archive)
    return path.read_bytes()


def odd_wheel(tmp_path: Path) -> bytes:
    """Return a wheel with all that a wheel may have."""
    data = "odd_one-1.0.data"
    files = {
        f"{data}/purelib/odd_pure.py": "PURE = 1\n",
        f"{data}/platlib/odd_one/plat.py": "PLAT = 1\n",
        f"{data}/scripts/odd-script": "#!python\nprint('script')\n",
        f"{data}/scripts/odd-shell": "#!/bin/sh\necho shell\n",
        f"{data}/data/share/odd/data.txt": "data",
        f"{data}/headers/odd.h": "int odd;",
        'odd_one/comma,quote".txt': "x",
        "odd_one/ünï.txt": "x",
        "odd_one/./dotted.txt": "x",
    }
    scripts = "odd = odd_one:main\nodd.two=odd_one.sub:Class.method [extra]\n[gui_scripts]\nodd-gui = odd_one:main"

    def change(archive: zipfile.ZipFile) -> None:
        for folder in ("odd_one/", f"{data}/", f"{data}/headers/", "odd_one-1.0.dist-info/"):
            archive.mkdir(folder)
        executable = zipfile.ZipInfo("odd_one/tool.sh")
        executable.external_attr = 0o100755 << 16
        archive.writestr(executable, "#!/bin/sh\n")
        link = zipfile.ZipInfo("odd_one/link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")

    made = wheel("odd-one", "1.0", files={**files, "odd_one/sub.py": ""}, scripts=scripts)
    return rebuilt(made, tmp_path / "made.zip", change)


def test_odd_wheel_is_installed_as_pip_does_it(tmp_path: Path) -> None:
    data = odd_wheel(tmp_path)
    file = tmp_path / "odd_one-1.0-py3-none-any.whl"
    file.write_bytes(data)
    options = ["--no-deps", "--no-index", "--no-compile", "--quiet", "--ignore-installed"]
    pip = [sys.executable, "-I", "-m", "pip", "install", *options, "--prefix", str(tmp_path / "pip"), str(file)]
    subprocess.run(pip, check=True)
    assert install_wheels(tmp_path, {"odd-one": data})["failure"] is None
    # pip puts headers elsewhere for a prefix than for a user.
    expected = {path.replace("/site/", "/"): rest for path, rest in tree(tmp_path / "pip").items()}
    found = tree(tmp_path / ".local")
    named = {path for path in found if path.rpartition("/")[2] not in OWN}
    assert named == {path for path in expected if path.rpartition("/")[2] not in OWN}
    for path in named:
        # Programs do the same in other words; those of a wheel's own are executable, whatever its modes say.
        assert path.startswith("bin/") or found[path] == expected[path], path
    shebang = f"#!{sys.executable}\n".encode()
    assert found["bin/odd-script"] == (shebang + b"print('script')\n", 0o755)
    assert {path for path in found if path.startswith("bin/") and found[path][1] != 0o755} == set()


def test_record_of_an_installation_is_right_and_removes_all_of_it(tmp_path: Path) -> None:
    assert install_wheels(tmp_path, {"odd-one": odd_wheel(tmp_path)})["failure"] is None
    site, before = tmp_path / ".local" / LIBRARY, tree(tmp_path / ".local")
    check = (
        "import sys; from importlib.metadata import PathDistribution; from pathlib import Path\n"
        "found = PathDistribution(Path(sys.argv[1]))\n"
        "import base64, hashlib\n"
        "for each in found.files:\n"
        "    data = each.locate().read_bytes()\n"
        "    value = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')\n"
        "    assert each.name == 'RECORD' or (each.hash.value, each.size) == (value, len(data)), each\n"
        "print(len(found.files))"
    )
    info = site / "odd_one-1.0.dist-info"
    done = subprocess.run([sys.executable, "-I", "-c", check, str(info)], check=True, capture_output=True)
    assert int(done.stdout) == len(before)
    report = install_wheels(tmp_path, {"odd-one": wheel("odd-one", "2.0")})
    assert (report["failure"], report["installed"]["odd-one"]["version"]) == (None, "2.0")
    assert set(tree(tmp_path / ".local")) == {
        f"{LIBRARY}/odd_one/__init__.py",
        *(
            f"{LIBRARY}/odd_one-2.0.dist-info/{name}"
            for name in ("METADATA", "WHEEL", *(OWN - {"REQUESTED", "direct_url.json"}))
        ),
    }
    assert sorted(path.name for path in (tmp_path / ".local").iterdir()) == [".lock", "lib"]


def damaged(name: str) -> bytes:
    """Return a wheel with a file that can't be read."""
    return wheel(name, "1.0").replace(b"METADATA", b"METADATX", 1)


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        (b"no zip file", "not a zip file"),
        (damaged("bad"), "differ"),
        (wheel("other", "1.0"), "one .dist-info folder"),
        (wheel("bad", "1.0", files={"../../out": ""}), "outside of itself"),
        (wheel("bad", "1.0", files={"/out": ""}), "outside of itself"),
        (wheel("bad", "1.0", files={"bad-1.0.data/strange/out": ""}), "no known kind"),
        (wheel("bad", "1.0", scripts="../bad = bad:main"), "entry point"),
        (wheel("bad", "1.0", scripts="bad = bad"), "entry point"),
    ],
)
def test_wheel_at_fault_leaves_all_as_it_was(tmp_path: Path, bad: bytes, cause: str) -> None:
    install_wheels(tmp_path, {"greet": wheel("greet", "1.0", files={"greet/old.py": ""})})
    before = tree(tmp_path / ".local")
    report = install_wheels(tmp_path, {"greet": wheel("greet", "2.0"), "more": wheel("more", "1.0"), "bad": bad})
    assert (report["failure"]["reason"], cause in report["failure"]["detail"]) == ("package", True), report
    assert report["failure"]["detail"].startswith("bad: ")
    assert tree(tmp_path / ".local") == before
    assert report["installed"]["greet"]["version"] == "1.0"


def test_file_that_can_not_be_put_in_place_takes_the_others_back(tmp_path: Path) -> None:
    install_wheels(tmp_path, {"greet": wheel("greet", "1.0", files={"greet/old.py": ""})})
    (tmp_path / ".local" / LIBRARY / "more").write_text("in the way")
    before = tree(tmp_path / ".local")
    report = install_wheels(tmp_path, {"greet": wheel("greet", "2.0"), "more": wheel("more", "1.0")})
    assert report["failure"]["reason"] == "sandbox"
    assert tree(tmp_path / ".local") == before


@pytest.mark.parametrize("name", ["data.bin", "code.py"])
def test_package_over_the_room_that_is_left_is_refused_before_it_is_unpacked(tmp_path: Path, name: str) -> None:
    room = 4 * 2**20
    size = 3_000_000 if name == "data.bin" else 1_500_000  # compiled code takes as much again
    fits = {each: wheel(each, "1.0", files={f"{each}/{name}": "#" * size}) for each in ("one", "two")}
    assert install_wheels(tmp_path, {"one": fits["one"]}, room=room)["failure"] is None
    before = tree(tmp_path / ".local")
    report = install_wheels(tmp_path, {"small": wheel("small", "1.0"), "two": fits["two"]}, room=room)
    left = 1 if name == "data.bin" else 2
    assert report["failure"] == {"reason": "room", "detail": f"two needs 3 MiB, and {left} MiB are free"}
    assert tree(tmp_path / ".local") == before
    assert not (tmp_path / ".local/.stage").exists()
    assert install_wheels(tmp_path, {"two": fits["two"]}, room=2 * room)["failure"] is None


def test_packages_go_to_the_folder_that_the_home_links_to(tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    (tmp_path / ".local").symlink_to(room)
    for version in ("1.0", "2.0"):
        assert install_wheels(tmp_path, {"greet": wheel("greet", version)}, room=2**20)["failure"] is None
    assert (room / LIBRARY / "greet/__init__.py").read_text() == "VERSION = '2.0'\n"
    assert (tmp_path / ".local").is_symlink()


def test_what_a_killed_installation_has_left_is_removed_and_its_room_is_free(tmp_path: Path) -> None:
    (tmp_path / ".local/.stage/0/lib").mkdir(parents=True)
    (tmp_path / ".local/.stage/0/lib/large").write_bytes(bytes(3_000_000))
    content = wheel("greet", "1.0", files={"greet/data.bin": "#" * 3_000_000})
    assert install_wheels(tmp_path, {"greet": content}, room=4 * 2**20)["failure"] is None
    assert not (tmp_path / ".local/.stage").exists()


def test_packages_share_files_and_folders(tmp_path: Path) -> None:
    wheels = {
        name: wheel(name, "1.0", files={"shared/__init__.py": name, f"shared/{name}.py": ""}) for name in ("one", "two")
    }
    assert install_wheels(tmp_path, wheels)["failure"] is None
    assert install_wheels(tmp_path, {"one": wheel("one", "2.0", files={"shared/one.py": "2"})})["failure"] is None
    shared = tmp_path / ".local" / LIBRARY / "shared"
    assert sorted(path.name for path in shared.iterdir()) == ["one.py", "two.py"]
