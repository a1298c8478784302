"""Results with links to the artifacts that they name."""

from sandpod_gateway.files.links import LinkMaker
from sandpod_gateway.runs.result import Reading, RunAnswer


def linked_answer(links: LinkMaker, answer: RunAnswer) -> RunAnswer:
    """Return a run's answer with links to its artifacts."""
    result = answer.result
    if not result.artifacts:
        return answer
    artifacts = links.linked(result.sandbox, result.artifacts)
    return RunAnswer(result.model_copy(update={"artifacts": artifacts}), answer.pictures)


def linked_reading(links: LinkMaker, reading: Reading) -> Reading:
    """Return what was read of a background run with links to its artifacts."""
    result = reading.result.result
    if result is None or not result.artifacts:
        return reading
    linked = result.model_copy(update={"artifacts": links.linked(result.sandbox, result.artifacts)})
    return Reading(reading.result.model_copy(update={"result": linked}), reading.pictures)
