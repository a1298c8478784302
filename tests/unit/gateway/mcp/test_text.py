"""What a model reads of a result: the output, then only what is not as expected."""

import pytest
from pydantic import BaseModel

from sandpod_gateway.api.results import (
    Artifact,
    ArtifactContent,
    ArtifactList,
    Closed,
    ErrorCode,
    FileContent,
    FileEntry,
    FileList,
    Installation,
    Package,
    PackageInfo,
    PackageList,
    Problem,
)
from sandpod_gateway.api.run_results import Outcome, Rich, RunOutput, RunResult
from sandpod_gateway.mcp.tool_results import SHOWN_FILES, size_text, text_of

FINE = {"sandbox": "sbx-1", "run_id": "sbx-1.r1", "outcome": Outcome.OK, "exit_code": 0}


def run(**fields: object) -> RunResult:
    return RunResult.model_validate({**FINE, "duration_ms": 12.5, "cpu_ms": 3.0, "max_rss_bytes": 10**7, **fields})


def artifacts(count: int) -> list[Artifact]:
    return [Artifact(path=f"f{n}.csv", size=1500, mime_type="text/csv", url=f"https://x/{n}") for n in range(count)]


CASES: list[tuple[BaseModel, str]] = [
    (run(stdout="1\n"), "1"),
    (run(), "(no output)"),
    (run(stdout="a\n", stderr="b\n"), "a\n[stderr]\nb"),
    (run(outcome=Outcome.ERROR, exit_code=3), "[error, exit code 3]"),
    (run(outcome=Outcome.ERROR, exit_code=None, signal="SIGSEGV"), "[error, SIGSEGV]"),
    (
        run(outcome=Outcome.OUT_OF_MEMORY, exit_code=None, stdout="x", hint="Work on the data in parts."),
        "x\n[out of memory]\n[hint: Work on the data in parts.]",
    ),
    (run(artifacts=artifacts(2)), "[files: f0.csv (1.5 kB), f1.csv (1.5 kB); read_artifact reads one]"),
    (run(stdout="v\n", result={"text/html": "<b>4</b>", "text/plain": "4"}, context="c"), "v\n4"),
    (
        run(
            displays=[
                Rich(index=0, mime_type="text/html", size=9, text="<i>1</i>"),
                Rich(index=0, mime_type="text/plain", size=1, text="table"),
                Rich(index=1, mime_type="image/png", size=10),
                Rich(index=2, mime_type="text/html", size=9, text="<i>2</i>"),
            ]
        ),
        "table\n[shown: text/html]",
    ),
    (run(context="c", context_state="lost"), "[the variables of context 'c' are lost]"),
    (RunOutput(run_id="r", sandbox="s", state="running", stdout="x\n", cursor=2), "x\n[running; next cursor: 2]"),
    (
        RunOutput(run_id="r", sandbox="s", state="ended", stdout="x\n", cursor=2, result=run(stdout="x\n")),
        "x\n[ended: ok]",
    ),
    (
        RunOutput(run_id="r", sandbox="s", state="running", dropped_bytes=5, cursor=9),
        "[5 earlier bytes are no longer kept]\n[running; next cursor: 9]",
    ),
    (FileContent(sandbox="s", path="a", encoding="utf-8", content="text\n", bytes=5, size=5), "text\n"),
    (
        FileContent(sandbox="s", path="a", encoding="utf-8", content="bc", offset=1, bytes=2, size=9, truncated=True),
        "bc\n[bytes 1 to 3 of 9; read on with offset=3]",
    ),
    (
        FileList(
            sandbox="s",
            path=".",
            entries=[FileEntry(path="d", kind="directory"), FileEntry(path="a.txt", kind="file", size=7)],
            truncated=True,
        ),
        "d/\na.txt (7 B)\n[there are more]",
    ),
    (FileList(sandbox="s", path=".", entries=[]), "(empty)"),
    (ArtifactList(sandbox="s", artifacts=artifacts(1)), "f0.csv (1.5 kB)"),
    (
        ArtifactContent(
            sandbox="s", path="p.bin", size=30_000, mime_type="application/zip", encoding="base64", content="UEs="
        ),
        "p.bin: application/zip, 30 kB",
    ),
    (
        Problem(
            error=ErrorCode.NOT_FOUND, message="There is no such file.", cause="It was moved.", next="List the folder."
        ),
        "Error not_found: There is no such file. (It was moved)\nNext: List the folder.",
    ),
    (
        Installation(installation="i1", sandbox="s", status="installing", elapsed=1),
        'installing; call get_installation(installation="i1", wait=60)',
    ),
    (
        Installation(
            installation="i1",
            sandbox="s",
            status="success",
            elapsed=1,
            packages=[Package(name="six", version="1.17", sha256="0" * 64)],
        ),
        "installed: six 1.17",
    ),
    (
        PackageList(
            sandbox="s",
            language="python",
            packages=[PackageInfo(name="six", version="1", source="installed")],
        ),
        "installed: six 1\nimage: none",
    ),
    (Closed(sandbox="s"), '{"sandbox":"s"}'),
]


@pytest.mark.parametrize(("model", "text"), CASES)
def test_a_result_reads_as_a_person_would_want_it(model: BaseModel, text: str) -> None:
    assert text_of(model) == text


def test_many_files_are_named_up_to_a_bound_and_counted() -> None:
    text = text_of(run(artifacts=artifacts(SHOWN_FILES + 5), artifacts_omitted=10))
    assert text.count(".csv") == SHOWN_FILES
    assert "and 15 more" in text
    assert "https://" not in text, "a signed link costs a model more than the file's name"


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (23_456, "23 kB"), (10**9, "1.0 GB"), (10**13, "10 TB")],
)
def test_sizes_are_told_as_people_say_them(size: int, text: str) -> None:
    assert size_text(size) == text
