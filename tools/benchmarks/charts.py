"""The pictures of the page of figures: horizontal bars, as SVG that reads well on a light and on a dark page.

The same figures always give the same bytes, so that a check can compare them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from benchmarks.results import OURS, RATES, Figure

WIDTH: Final = 920
LABELS: Final = 330
"""Width of what stands to the left of the bars."""
VALUES: Final = 130
"""Width of what stands to the right of the longest one."""
ROW: Final = 22
HEAD: Final = 34
PAD: Final = 14
STYLE: Final = """
  .page { fill: #ffffff; stroke: #cbd5e1 }
  text { fill: #1e293b; font: 13px system-ui, sans-serif }
  .title { font-weight: 600 }
  .note { fill: #475569 }
  .ours { fill: #0f766e } .peer { fill: #94a3b8 } .over { fill: #b45309 }
  .tail, .limit { stroke: #475569; stroke-width: 1.5 }
  .limit { stroke-dasharray: 4 3 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0f172a; stroke: #334155 }
    text { fill: #e2e8f0 } .note { fill: #94a3b8 }
    .ours { fill: #2dd4bf } .peer { fill: #64748b } .over { fill: #f59e0b }
    .tail, .limit { stroke: #cbd5e1 }
  }
"""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar.

    Attributes:
        label: What stands before it.
        length: How long it is, as a share of the longest.
        text: What stands behind it.
        kind: Its colour: `ours`, `peer` or `over`.
        tail: Where a thin line from its end leads to, as a share of the longest; None without one.
    """

    label: str
    length: float
    text: str
    kind: str
    tail: float | None = None


@dataclass(frozen=True, kw_only=True)
class Group:
    """Bars of one scale under one title.

    Attributes:
        title: What is compared.
        bars: The bars.
        limit: Where a dashed line crosses them, as a share of the longest; None without one.
    """

    title: str
    bars: Sequence[Bar]
    limit: float | None = None


def number(value: float) -> str:
    """Return a figure with as many digits as say something."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"  # noqa: PLR2004


def beside(groups: Iterable[Sequence[Figure]]) -> str:
    """Return Sandpod and its peers on the same work, as bars of the median with a line to the 99th percentile."""
    found = []
    for figures in groups:
        longest = max(figure.p99 for figure in figures)
        bars = [
            Bar(
                label=figure.by,
                length=share(figure.p50, longest),
                text=f"{number(figure.p50)} {figure.unit}",
                kind="ours" if figure.by == OURS else "peer",
                tail=share(figure.p99, longest) if figure.count > 1 else None,
            )
            for figure in figures
        ]
        better = "more is better" if figures[0].unit in RATES else "less is better"
        found.append(Group(title=f"{figures[0].what} ({better})", bars=bars))
    return picture("Sandpod and its peers on the same work", found)


def against_budgets(figures: Iterable[Figure]) -> str:
    """Return how much of each budget of a median is used."""
    used = []
    for figure in figures:
        if figure.budget is None or figure.unit in RATES:
            continue
        used.append((figure, share(figure.p50, figure.budget[0])))
    longest = max([1.0, *(each for _, each in used)])
    bars = [
        Bar(
            label=figure.what,
            length=each / longest,
            text=f"{number(figure.p50)} of {number(figure.budget[0]) if figure.budget else ''} {figure.unit}".rstrip(),
            kind="ours" if each <= 1 else "over",
        )
        for figure, each in used
    ]
    title = "Medians as shares of their budgets; the dashed line is the budget"
    return picture("Medians against budgets", [Group(title=title, bars=bars, limit=1 / longest)])


def share(value: float, whole: float) -> float:
    """Return a part of a whole; nothing of nothing."""
    return max(0.0, value / whole) if whole > 0 else 0.0


def picture(name: str, groups: Sequence[Group]) -> str:
    """Return an SVG file with groups of bars, one below the other."""
    parts: list[str] = []
    top = PAD
    for group in groups:
        parts += drawn(group, top)
        top += HEAD + ROW * len(group.bars)
    height = top + PAD
    said = f'role="img" aria-label="{escape(name)}"'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {said}>',
        f"<style>{STYLE}</style>",
        f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
    ]
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


def drawn(group: Group, top: int) -> list[str]:
    """Return a group of bars at a place of the picture."""
    room = WIDTH - LABELS - VALUES - PAD
    parts = [f'<text class="title" x="{PAD}" y="{top + 20}">{escape(group.title)}</text>']
    limit = None if group.limit is None else LABELS + group.limit * room
    for index, bar in enumerate(group.bars):
        y = top + HEAD + ROW * index
        end = LABELS + max(1.0, bar.length * room)
        parts.append(
            f'<text class="note" x="{LABELS - 8}" y="{y + 12}" text-anchor="end">{escape(fitted(bar.label))}</text>'
        )
        parts.append(f'<rect class="{bar.kind}" x="{LABELS}" y="{y}" width="{end - LABELS:.1f}" height="15" rx="2"/>')
        if bar.tail is not None and bar.tail > bar.length:
            end_of_tail = LABELS + bar.tail * room
            parts.append(f'<path class="tail" d="M{end:.1f} {y + 7.5}H{end_of_tail:.1f}M{end_of_tail:.1f} {y + 3}v9"/>')
            end = end_of_tail
        if limit is not None and end < limit:  # the line would cross the text
            end = limit
        parts.append(f'<text x="{end + 8:.1f}" y="{y + 12}">{escape(bar.text)}</text>')
    if limit is not None:
        bottom = top + HEAD + ROW * len(group.bars) - 4
        parts.append(f'<path class="limit" d="M{limit:.1f} {top + HEAD - 6}V{bottom}"/>')
    return parts


def fitted(label: str, letters: int = 48) -> str:
    """Return a label that fits before its bar."""
    return label if len(label) <= letters else f"{label[: letters - 1].rstrip()}…"
