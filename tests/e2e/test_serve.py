"""The gateway outside of the cluster, started by hand: over TLS, and when it can't start."""

import ssl
from ipaddress import ip_address
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from sandpod_gateway.cli import main
from support.cluster.callers import Caller
from support.cluster.cluster import Cluster
from support.cluster.server import StartError, serving
from support.servers.certificates import make_certificate


async def test_gateway_serves_over_tls_with_keys_from_a_file(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate, private = make_certificate(tmp_path, x509.IPAddress(ip_address("127.0.0.1")))
    keys = tmp_path / "keys.yaml"
    monkeypatch.setattr("sys.argv", ["sandpod", "keys", "create", "--user", "carol", "--file", str(keys)])
    with pytest.raises(SystemExit):
        main.main()
    key = capsys.readouterr().out.splitlines()[0].rsplit(" ", 1)[1]
    assert key not in keys.read_text(encoding="utf-8")
    flags = ["--backend", "kubernetes", "--kubernetes.namespace", cluster.sandboxes]
    flags += ["--auth.keys-file", str(keys), "--tls.cert", str(certificate), "--tls.key", str(private)]
    trust = ssl.create_default_context(cafile=str(certificate))
    async with serving(*flags) as (url, _), Caller(url, key, trust).connect() as session:
        assert url.startswith("https://127.0.0.1:")
        reply = await session.python("print('over TLS')", fresh=True)
    assert reply["stdout"] == "over TLS\n"


async def test_cluster_that_cannot_be_reached_is_said_in_one_sentence(tmp_path: Path) -> None:
    nowhere = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "nowhere",
        "clusters": [{"name": "nowhere", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "nobody", "user": {}}],
        "contexts": [{"name": "nowhere", "context": {"cluster": "nowhere", "user": "nobody"}}],
    }
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(nowhere), encoding="utf-8")
    with pytest.raises(StartError) as told:
        async with serving("--backend", "kubernetes", "--kubernetes.kubeconfig", str(file)):
            pass
    lines = [line for line in str(told.value).splitlines() if line.startswith("sandpod: ")]
    assert len(lines) == 1
    assert "Traceback" not in str(told.value)
