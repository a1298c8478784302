"""What stands beside the structured content: files are linked in the content only where that was asked for."""

from typing import Any

import pytest
from mcp_types import ResourceLink

from sandpod_gateway.api.results import Artifact, ArtifactList
from sandpod_gateway.api.run_results import Outcome, RunOutput, RunResult
from sandpod_gateway.content import Answer
from sandpod_gateway.mcp.tool_results import SHOWN_FILES, tool_result

FILES = [Artifact(path=f"f{n}.csv", size=n, mime_type="text/csv", url=f"https://x/{n}") for n in range(SHOWN_FILES + 5)]
RUN: dict[str, Any] = {"sandbox": "sbx-1", "run_id": "sbx-1.r1", "outcome": Outcome.OK, "exit_code": 0}
RESULT = RunResult.model_validate(
    {**RUN, "duration_ms": 1, "cpu_ms": 1, "max_rss_bytes": 1, "artifacts": [each.model_dump() for each in FILES]}
)
ENDED = RunOutput.model_validate(
    {"sandbox": "sbx-1", "run_id": "sbx-1.r1", "state": "ended", "cursor": 0, "result": RESULT.model_dump()}
)
LISTED = ArtifactList(sandbox="sbx-1", artifacts=FILES, truncated=False)


@pytest.mark.parametrize("result", [RESULT, ENDED, LISTED], ids=["run", "read_run", "list"])
def test_files_that_the_text_names_are_linked_on_request_only(result: RunResult | RunOutput | ArtifactList) -> None:
    blocks = tool_result(Answer(result), link_files=True).content[1:]
    assert [str(block.uri) for block in blocks if isinstance(block, ResourceLink)] == [
        f"https://x/{n}" for n in range(SHOWN_FILES)
    ]
    assert len(tool_result(Answer(result)).content) == 1
