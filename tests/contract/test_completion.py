"""What `sandpod completion bash` prints, in a bash of a person's: what it lists and fills in on the Tab key."""

import json
import os
import re
import sys
from pathlib import Path

from support.pty_program import PtyProgram, in_terminal

HOSTILE = "t$(touch owned)"
SETTINGS = ("show-all-if-ambiguous on", "page-completions off", "enable-bracketed-paste off", "bell-style none")
END = "[end]"  # the prompt, which nothing else shows


async def listed(shell: PtyProgram, line: str) -> list[str]:
    """Return what is listed for a line on Tab, which is then removed."""
    shell.type(f"{line}\t")
    # What it lists, the prompt, and the line again.
    shown = await shell.until(rf"\r\n(?s:.*)\[end\] {re.escape(line)}")
    shell.type("\x15")  # Ctrl-U
    return shown.partition("\r\n")[2].replace(f"{END} {line}", "").split()


async def test_bash_lists_and_fills_in_commands_options_choices_profiles_and_files(tmp_path: Path) -> None:
    profiles = {"team": {"url": "http://127.0.0.1:1"}, "tenant": {"url": "http://127.0.0.1:1"}, HOSTILE: {}}
    (tmp_path / "profiles.json").write_text(json.dumps({"profiles": profiles}))
    (tmp_path / "only-file.py").touch()
    (tmp_path / "inputrc").write_text("".join(f"set {each}\n" for each in SETTINGS))
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SANDPOD_PROFILES": str(tmp_path / "profiles.json"),
        "INPUTRC": str(tmp_path / "inputrc"),
        "HOME": str(tmp_path),
        "TERM": "dumb",
        "PS1": f"{END} ",
    }
    bash = "env", "-i", *(f"{name}={value}" for name, value in environment.items()), "bash", "--norc", "--noprofile"
    async with in_terminal("env", f"--chdir={tmp_path}", *bash, "-i") as shell:
        await shell.until(r"\[end\] ")
        shell.type("source <(sandpod completion bash); echo re''ady\n")
        await shell.until(r"ready\r\n\[end\] ")
        assert await listed(shell, "sandpod lo") == ["login", "logs"]
        assert await listed(shell, "sandpod keys r") == ["revoke", "rotate"]
        assert await listed(shell, "sandpod usage --by ") == ["key", "sandbox", "tenant", "user"]
        assert await listed(shell, "sandpod usage --by=") == ["key", "sandbox", "tenant", "user"]
        assert await listed(shell, "sandpod ps --profile te") == ["team", "tenant"]
        # No word is run, neither now nor when it was filled in.
        assert " ".join(await listed(shell, "sandpod ps --profile t")) == r"t\$\(touch\ owned\) team tenant"
        assert not (tmp_path / "owned").exists()
        # One that is left is filled in, and a file where there is no word.
        shell.type("sandpod pool\t")
        await shell.until("sandpod pools ")
        shell.type("\x15sandpod run --jso\t")
        await shell.until("--json ")
        shell.type("\x15sandpod run only\t")
        await shell.until("only-file.py ")
