"""What becomes of a benchmark's results: budgets judged, tables, pictures."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from pydantic import ValidationError

from bench.rows import BUDGETS, Row, figure, line
from benchmarks import charts, page
from benchmarks.results import OURS, Figure, Machine, Results, budget_of, percentile

SVG = "{http://www.w3.org/2000/svg}"
MACHINE = Machine(
    processor="A | B", cores=2, memory_gib=23.5, kernel="6.1", system="Debian", python="3.11", load_before=(0.1, 0.2, 3)
)


def row(
    key: str = "call", by: str = OURS, *, p50: float = 10, p99: float = 25, unit: str = "ms", **more: object
) -> Figure:
    """Return a row."""
    known = {"key": key, "what": f"what {key} is", "by": by, "unit": unit, "count": 30}
    return Figure.model_validate({**known, "p50": p50, "p95": p50, "p99": p99, **more})


def results(*figures: Figure, **more: object) -> Results:
    """Return results of one machine."""
    known = {"date": "2030-01-02", "version": "abc", "command": "make bench", "machine": MACHINE, "figures": figures}
    return Results.model_validate({**known, **more})


@pytest.mark.parametrize(
    ("figure", "met"),
    [
        (row(), None),
        (row(budget=(10, 25)), True),
        (row(budget=(10, 24)), False),
        (row(budget=(9, 25)), False),
        (row(budget=(10,), p99=1000), True),
        (row(budget=(10,), unit="1/s"), True),
        (row(budget=(11,), unit="1/s"), False),
        (row(budget=(9,), unit="MB/s"), True),
    ],
)
def test_a_budget_is_an_upper_bound_but_of_a_rate(figure: Figure, met: bool | None) -> None:  # noqa: FBT001
    assert figure.met() is met


def test_a_limit_in_words_is_read_as_numbers() -> None:
    assert [budget_of(limit) for limit in (None, "8", "10 / 25", "0.5")] == [None, (8,), (10, 25), (0.5,)]
    assert all(budget.limit is None or budget_of(budget.limit) for budget in BUDGETS.values())


def test_percentiles_are_samples() -> None:
    assert [percentile(range(100), share) for share in (0.5, 0.95, 0.99)] == [50, 95, 99]
    assert percentile([7], 0.99) == 7


def test_a_row_becomes_a_figure_and_a_line() -> None:
    ours, peer = Row("call", [3, 1, 2]), Row("call", [30.004], "docker exec")
    assert figure(ours).model_dump(include={"by", "count", "p50", "p99", "budget"}) == {
        "by": OURS,
        "count": 3,
        "p50": 2,
        "p99": 3,
        "budget": (10, 25),
    }
    assert (figure(peer).p50, figure(peer).budget) == (30, None)
    assert "10 / 25" in line(ours)
    assert line(peer).split()[:3] == ["docker", "exec:", "call"]
    assert figure(Row("upload", [1], detail="10 MB")).what == "copy a file into a sandbox: 10 MB"


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    made = results(row(budget=(10, 25)), row(by="docker exec"), left_out={"kubectl": "it is not there"})
    made.write(tmp_path / "made/bench.json")
    assert Results.read(tmp_path / "made/bench.json") == made
    (tmp_path / "bad.json").write_text('{"date": "2030-01-02"}', encoding="utf-8")
    with pytest.raises(ValidationError):
        Results.read(tmp_path / "bad.json")


def test_what_a_peer_did_too_is_compared_with_ours_first() -> None:
    made = results(row(by="docker exec", p50=300), row(), row("rest"), row("claim", "another"))
    assert [[each.by for each in group] for group in made.compared()] == [[OURS, "docker exec"]]
    text = page.peers(made)
    assert "| what call is | Sandpod | ms | 30 | 10.0 | 10.0 | 25.0 |  |" in text
    assert "|  | docker exec | ms | 30 | 300 | 300 | 25.0 | 30 |" in text
    assert "claim" not in text
    assert page.peers(results(row())) == "No peer was measured."


def test_every_row_of_ours_is_on_the_page_with_its_verdict() -> None:
    made = results(
        row(budget=(10, 25)),
        row("rest", budget=(9, 25)),
        row("shell"),
        row("together", p50=54, count=1, budget=(110,), unit="1/s"),
    )
    text = page.budgets(made)
    assert [line.split(" | ")[-1].rstrip(" |") for line in text.splitlines()[2:]] == [
        "met",
        "**missed**",
        "",
        "**missed**",
    ]
    assert "| what together is | 1/s | 1 | 54.0 |  |  | 110 | **missed** |" in text
    assert page.summary(made) == "1 of 3 budgets are met.\n\nMissed:\n\n- what rest is\n- what together is"
    assert page.summary(results(row(budget=(10, 25)))) == "1 of 1 budgets are met."


def test_the_machine_is_named_with_its_load_and_what_was_left_out() -> None:
    text = page.machine(results(peers={"kubectl": "v1.34"}, left_out={"docker": "no | engine"}))
    assert r"| Processor | A \| B, 2 cores |" in text
    assert "| Load before | 0.1 over 1 minute, 0.2 over 5, 3 over 15 |" in text
    assert "| Version of kubectl | v1.34 |" in text
    assert r"| Left out: docker | no \| engine |" in text
    assert "Kubernetes" not in text


def test_bars_are_as_long_as_what_they_show() -> None:
    made = results(row(p50=100, p99=400), row(by="docker <exec>", p50=200, p99=200))
    text = charts.beside(made.compared())
    bars = [element for element in ET.fromstring(text).iter(f"{SVG}rect") if element.get("class") != "page"]  # noqa: S314
    assert [bar.get("class") for bar in bars] == ["ours", "peer"]
    ours, peer = (float(bar.attrib["width"]) for bar in bars)
    assert peer == pytest.approx(2 * ours, rel=0.01)
    labels = [element.text for element in ET.fromstring(text).iter(f"{SVG}text")]  # noqa: S314
    assert labels == ["what call is (less is better)", "Sandpod", "100 ms", "docker <exec>", "200 ms"]
    [tail] = re.findall(r'class="tail" d="M([\d.]+) [\d.]+H([\d.]+)', text)
    assert float(tail[1]) - charts.LABELS == pytest.approx(4 * ours, rel=0.01)


def test_a_bar_over_its_budget_crosses_the_line() -> None:
    made = [
        row(budget=(5, 25)),
        row("rest", p50=1, budget=(4,)),
        row("shell"),
        row("output", unit="MB/s", budget=(50,)),
    ]
    root = ET.fromstring(charts.against_budgets(made))  # noqa: S314
    over, within = [element for element in root.iter(f"{SVG}rect") if element.get("class") != "page"]
    [limit] = [element for element in root.iter(f"{SVG}path") if element.get("class") == "limit"]
    at = float(limit.attrib["d"][1:].split()[0])
    ends = [float(bar.attrib["x"]) + float(bar.attrib["width"]) for bar in (over, within)]
    assert (over.get("class"), within.get("class")) == ("over", "ours")
    assert ends[1] < at < ends[0]


def test_pictures_fit_light_and_dark_pages_and_are_the_same_each_time() -> None:
    made = results(row(budget=(10, 25)), row(by="docker exec", p50=0, p99=0))
    pictures = page.pictures(made)
    assert pictures == page.pictures(Results.model_validate_json(made.model_dump_json()))
    for text in pictures.values():
        root = ET.fromstring(text)  # noqa: S314
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        assert "prefers-color-scheme: dark" in text
        assert all(0 <= float(each.attrib["y"]) <= height for each in root.iter() if "y" in each.attrib)
        assert all(0 <= float(each.attrib["x"]) <= width for each in root.iter() if "x" in each.attrib)
    assert page.pictures(results())  # without any row


def test_readme_has_no_figure_that_the_page_has_not() -> None:
    root = Path(__file__).resolve().parents[3]
    readme, shown = ((root / name).read_text(encoding="utf-8") for name in ("README.md", "docs/benchmarks.md"))
    quoted = re.findall(r"(\d[\d.,]*) (?:ms|MB/s|MB|runs/s|runs a second)\b", readme)
    assert [value for value in quoted if f"| {value} |" not in shown] == []
