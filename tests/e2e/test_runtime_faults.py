"""A container runtime that fails to start containers: one fresh pod is tried, and no more.

On the nodes `runc` is a wrapper meanwhile that fails for the pods of these tests and hands on the rest, so no other
test is disturbed; it is taken away whatever happens.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.cluster.cluster import until
from support.cluster.nodes import on_every_node
from support.operator.process import Objects, OperatorProcess, running

WORDS = "unable to start container process: can't get final child's PID from pipe: EOF"
# Fails a container's creation as often as the pod's name says, with the words of a runc that was killed meanwhile.
WRAPPER = r"""#!/bin/sh
last= bundle= log=
for word in "$@"; do
  case $last in --bundle) bundle=$word ;; --log) log=$word ;; esac
  last=$word
done
case " $* " in
  *" create "*)
    name=$(grep -o '"io.kubernetes.cri.sandbox-name":"fails-[0-9]"' "$bundle/config.json" | cut -d '"' -f 4)
    if [ -n "$name" ] && grep -q '"io.kubernetes.cri.container-type":"container"' "$bundle/config.json"; then
      failed=$(cat "/run/sandpod-$name" 2>/dev/null || echo 0)
      if [ "$failed" -lt "${name#fails-}" ]; then
        echo $((failed + 1)) >"/run/sandpod-$name"
        echo '{"level":"error","msg":"WORDS","time":"2026-01-01T00:00:00Z"}' >>"$log"
        exit 1
      fi
    fi
    ;;
esac
exec "$0.sandpod" "$@"
""".replace("WORDS", WORDS.replace("'", "'\\''"))
# Each by one rename, so that there is a runc at every moment; the wrapper's own is there for those that run it already.
BREAK = f"""
runc=$(command -v runc)
cat >$runc.new <<'END'
{WRAPPER}
END
chmod 755 $runc.new
cp -p $runc $runc.copy
mv $runc.copy $runc.sandpod
mv $runc.new $runc
"""
MEND = """
runc=$(command -v runc)
if [ -e $runc.sandpod ]; then cp -p $runc.sandpod $runc.copy; mv $runc.copy $runc; fi
rm -f /run/sandpod-fails-*
"""


@pytest.fixture
def operator(objects: Objects, tmp_path: Path) -> Iterator[OperatorProcess]:
    with running(tmp_path / "log", objects.namespace, RETENTION="600") as made:
        yield made


@pytest.fixture
async def broken(objects: Objects) -> AsyncIterator[None]:
    await on_every_node(objects.cluster, MEND + BREAK)
    yield
    await on_every_node(objects.cluster, MEND)


@pytest.mark.usefixtures("broken")
async def test_start_that_the_runtime_fails_is_tried_once_more_and_a_second_failure_is_final(
    objects: Objects, operator: OperatorProcess
) -> None:
    await objects.template()
    for name in ("fails-1", "fails-2"):
        await objects.sandbox(name)
    status = await objects.phase("fails-1", "Ready", within=60)
    assert "retriedPod" not in status
    assert WORDS in await objects.reason("fails-2", "StartFailed", within=60)
    status = await objects.status("fails-2")
    assert status["phase"] == "Failed"

    # Two pods for each and no third.
    assert operator.writes()["create", "Pod"] == 4
    for name, end in (("fails-1", "Ready"), ("fails-2", "StartFailed")):

        async def told(name: str = name, end: str = end) -> bool:
            chosen = f"involvedObject.kind=Sandbox,involvedObject.name={name}"
            events = ("get", "events", "-n", objects.namespace, "--field-selector", chosen)
            reasons = await objects.cluster.kubectl(*events, "-o", "jsonpath={.items[*].reason}")
            return sorted(reasons.split()) == sorted(["PodCreated", "StartRetried", end])

        await until(f"the story of {name}", told, within=60)
