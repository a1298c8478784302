"""Makes the API keys of the test cluster and what the chart needs of them.

Called by `tools/cluster.sh install`. The keys themselves go into a file for the tests, their hashes into values for
the chart, and alice's key into the Secret that `helm test` calls the gateway with. Keys that are there are kept, so
that a second install does not lock out what uses them. Never meant for a cluster that people use.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

USERS = ("alice", "bob")


def create(user: str) -> dict[str, Any]:
    """Return a new key of the user and its hashed entry."""
    program = Path(sys.executable).with_name("sandpod")
    made = subprocess.run(
        [program, "keys", "create", "--user", user, "--output", "json"], check=True, capture_output=True, text=True
    )
    answer: dict[str, Any] = json.loads(made.stdout)
    return answer


def load(path: Path) -> dict[str, Any]:
    """Return the keys by user, made now where the file has none."""
    if path.exists():
        keys: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    else:
        keys = {user: create(user) for user in USERS}
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(keys, file)
    return keys


def values(keys: dict[str, Any]) -> dict[str, Any]:
    """Return the chart's values: the hashed entries."""
    entries = [made["entry"] for made in keys.values()]
    return {"auth": {"keys": entries}, "tests": {"keySecret": "sandpod-test-key"}}


def secret(keys: dict[str, Any]) -> dict[str, Any]:
    """Return the Secret with the key that `helm test` uses."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "sandpod-test-key"},
        "stringData": {"key": keys["alice"]["key"]},
    }


def main() -> None:
    """Write the three files named on the command line: keys, values, Secret."""
    keys_file, values_file, secret_file = (Path(name) for name in sys.argv[1:4])
    keys = load(keys_file)
    values_file.write_text(yaml.safe_dump(values(keys)), encoding="utf-8")
    secret_file.write_text(yaml.safe_dump(secret(keys)), encoding="utf-8")


if __name__ == "__main__":
    main()
