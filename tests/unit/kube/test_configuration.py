import pytest

from sandpod_kube.configuration import has_proxy


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://api.example.com:6443", True),
        ("http://api.example.com", False),
        ("https://10.96.0.1:443", False),
        ("https://kube.inside.example", False),
    ],
)
def test_proxy_counts_where_the_environment_says_so(
    url: str, monkeypatch: pytest.MonkeyPatch, *, expected: bool
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.com:3128")
    monkeypatch.setenv("no_proxy", "10.96.0.1,.inside.example")
    assert has_proxy(url) is expected
