"""What to do about a failed run, where that can be told from its end. Pure; called by `runs.py`."""

import re
from typing import Final

from sandpod_api.run_results import Language, Outcome

_MISSING_PYTHON: Final = re.compile(r"ModuleNotFoundError: No module named '([\w.]{1,100})'")
_MISSING_NODE: Final = re.compile(r"Cannot find (?:module|package) '([^'\n]{1,100})'")
_NO_BROWSER: Final = re.compile(r"Image export .{0,40}requires the Kaleido package")
_NO_NETWORK: Final = re.compile(
    r"Temporary failure in name resolution|Name or service not known|Network is unreachable|ENETUNREACH|EAI_AGAIN"
    r"|Could not resolve host"
)

_BY_OUTCOME: Final = {
    Outcome.TIMEOUT: "The program was stopped at its timeout; ask for a longer one, or do less in one run.",
    Outcome.OUT_OF_MEMORY: "The program used more memory than the sandbox has; work on the data in parts.",
    Outcome.OUTPUT_LIMIT: "The program was stopped because it wrote too much; write large output to a file.",
    Outcome.SANDBOX_LOST: "Its files are lost, unless it was suspended with a persistent workspace; call again.",
}


def hint_for(outcome: str, detail: str | None, stderr: str, language: str | None, dropped: int = 0) -> str | None:
    """Return a few sentences for the caller, or None.

    Args:
        outcome: How the run ended.
        detail: What the runner said of the end.
        stderr: What the program wrote there, as far as it was kept.
        language: The program's language, where it is known.
        dropped: How many things that it showed are not in the result.
    """
    return " ".join(filter(None, (_about_end(outcome, detail, stderr, language), about_dropped(dropped)))) or None


def about_dropped(count: int) -> str | None:
    """Return a sentence on what a run showed that is not in its result, or None."""
    if count == 0:
        return None
    things = "1 thing that it showed was" if count == 1 else f"{count} things that it showed were"
    return f"{things} too much to come back here: write such things to files, or show less."


def _about_end(outcome: str, detail: str | None, stderr: str, language: str | None) -> str | None:
    if outcome in _BY_OUTCOME:
        return " ".join(filter(None, (detail, _BY_OUTCOME[Outcome(outcome)])))
    if outcome != Outcome.ERROR:
        return detail
    return detail or _from_stderr(stderr, language)


def _from_stderr(stderr: str, language: str | None) -> str | None:
    missing = (_MISSING_NODE if language == Language.JAVASCRIPT else _MISSING_PYTHON).search(stderr)
    if missing is not None:
        return _about_missing(missing[1], language)
    if _NO_BROWSER.search(stderr):
        return (
            "A picture of a plotly figure takes a browser, which no sandbox has: show the figure, and it comes back as "
            "a page and as its data, or draw it with matplotlib."
        )
    if _NO_NETWORK.search(stderr):
        return "This sandbox has no network; ask for a template's network profile with create_sandbox."
    if "Read-only file system" in stderr or "EROFS" in stderr:
        return "Only /workspace and /tmp can be written to."
    return None


# Modules whose package is called something else.
_PACKAGES: Final = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "fitz": "pymupdf",
    "pptx": "python-pptx",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


def _about_missing(module: str, language: str | None) -> str:
    if language == Language.JAVASCRIPT:
        if module.startswith((".", "/")):
            return f"There is no {module!r}: paths begin where the program's working directory is, /workspace."
        parts = module.split("/")
        package = "/".join(parts[:2] if module.startswith("@") else parts[:1])
        return (
            f'{module!r} is not in this sandbox: call install_packages with packages=["{package}"] and '
            'language="javascript" and run it again, or pass packages to run_js_code.'
        )
    name = module.partition(".")[0]
    package = _PACKAGES.get(name, name.replace("_", "-"))
    return (
        f'{module!r} is not in this sandbox: call install_packages with packages=["{package}"] and run it again, or '
        f"pass packages to run_python_code; the package may have another name than the module."
    )
