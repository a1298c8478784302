"""The program from outside: what it says and how it ends when it can't begin."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: nowhere
contexts: [{name: nowhere, context: {cluster: nowhere, user: nobody}}]
clusters: [{name: nowhere, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: nobody, user: {token: a-secret-token}}]
"""


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SANDPOD_", "KUBE"))}
    return subprocess.run(
        [sys.executable, "-m", "sandpod_operator"],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_cluster_that_does_not_answer_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(KUBECONFIG)
    done = run(KUBECONFIG=str(path), SANDPOD_OPERATOR_NAMESPACES="boxes")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("sandpod-operator: no answer from http://127.0.0.1:1")
    assert "check that the cluster runs" in done.stderr
    assert "secret" not in done.stderr


@pytest.mark.parametrize(("value", "words"), [("", "NAMESPACES"), ("no/name", "is not a namespace name")])
def test_wrong_settings_are_one_sentence_and_exit_code_2(value: str, words: str) -> None:
    done = run(SANDPOD_OPERATOR_NAMESPACES=value)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


LISTENING = """\
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'{"items": []}')
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def test_port_that_is_taken_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "config"
    with subprocess.Popen([sys.executable, "-c", LISTENING], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            path.write_text(KUBECONFIG.replace("127.0.0.1:1", f"127.0.0.1:{port}"))
            taken = {"SANDPOD_OPERATOR_HTTP_HOST": "127.0.0.1", "SANDPOD_OPERATOR_HTTP_PORT": port}
            done = run(KUBECONFIG=str(path), SANDPOD_OPERATOR_NAMESPACES="boxes", **taken)
        finally:
            server.kill()
    assert done.returncode == 2
    assert f"can't listen on 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr
