"""The judge's document as a page: a plot of each figure with its goals and the value of each pass, one of where the
time goes, one of the peers, and tables. One file without scripts, light and dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from benchmarks.figures import KEYS, text_of

_STYLE = """
:root{color-scheme:light dark}
body{font:14px system-ui,sans-serif;margin:2em auto;max-width:1080px;padding:0 1em}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.25em .7em;border-bottom:1px solid #8884;text-align:left;vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
svg text{font:12px system-ui,sans-serif;fill:currentColor}
.track{fill:#8882}.met{fill:#2e8b57}.missed{fill:#c62828}.none{fill:#5b7fa6}.goal{stroke:currentColor;stroke-width:2}
.aim{stroke:currentColor;stroke-width:1;stroke-dasharray:3 3}.pass{fill:currentColor;opacity:.55}
.clock{fill:#5b7fa6}.cpu{fill:#e0a100}.broker{fill:#999}.read{fill:#2e8b57}.axis{fill:none;stroke:currentColor}
.line{fill:none;stroke-width:2}.line.clock{stroke:#5b7fa6}.line.cpu{stroke:#e0a100}.line.broker{stroke:#999}.line.read{stroke:#2e8b57}
"""
_NAMES, _BARS, _LABELS, _LINE = 280, 510, 250, 26
_CURVES = (
    ("seconds", "ingest and publish", "clock"),
    ("ingest", "ingest", "broker"),
    ("cpu", "CPU of ingest", "cpu"),
    ("read", "reading the table", "read"),
)
"""Figures of a point, what they are called, and the class of their line."""


def page(document: Mapping[str, Any]) -> str:
    """The page, as HTML."""
    about = document["about"]
    machine = about["machine"]
    measured = f"version {about['version']}, {about['at']}, {machine['cpu']}, {machine['cores']} cores, {machine['memory_mb']:,} MB"
    warning = "<p><b>A quick run of a small recorded workload: its figures mean nothing.</b></p>" if about["quick"] else ""
    below = document["below_half_of_orders"]
    parts = [
        f"<h1>Benchmarks</h1><p>{escape(measured)}; {about['seconds']} s; load {about['load']:.2f}</p>{warning}",
        "<h2>Figures and their goals</h2><p>Bar: the median; dots: single passes; line: at least (at most); dashed: aim.</p>",
        _goals(document),
        f"<p>Below half of what orders reach: {escape(', '.join(below))}.</p>" if below else "",
        "<h2>Where a batch's time goes</h2>",
        _steps(document["steps"]),
        "<h2>Peers, in the same run</h2>",
        _peers(document),
        "<h2>All figures</h2>",
        _table(document),
        "<h2>Left out</h2>",
        _rows(("figure", "reason"), ((name, reason) for name, reason in document["left_out"].items())),
    ]
    return _whole("Benchmarks", parts)


def curves_page(document: Mapping[str, Any]) -> str:
    """The page of `curves.py`: a plot of each dimension, seconds by the value."""
    parts = ["<h1>How a batch's cost grows</h1>", f"<p>{document['batch']:,} rows a batch, {document['cores']} cores, medians; s.</p>"]
    for name, curve in document["curves"].items():
        lines = [(label, css, [(point["value"], point[part]) for point in curve["points"]])
                 for part, label, css in _CURVES if part in curve["points"][0]]  # fmt: skip
        parts += [f"<h2>{escape(name)}</h2>", _plot(curve["what"], lines)]
    return _whole("Growth", parts)


def _goals(document: Mapping[str, Any]) -> str:
    """A line a figure, each with a scale of its own that ends above its largest value or goal."""
    drawn = []
    shown = [name for name in KEYS if name in document]
    for at, name in enumerate(shown):
        key, figure = KEYS[name], document[name]
        goals = [goal for goal in (key.least, key.aim) if goal is not None]
        most = 1.1 * max(figure["median"], *figure["values"], *goals, 1e-9)
        kind = {True: "met", False: "missed", None: "none"}[figure["reached"]]
        label = f"{text_of(figure['median'])} {key.unit}{' (low is good)' if key.low else ''}"
        drawn += _bar(at, name, figure["median"] / most, kind, label, key.meaning)
        drawn += [_dot(at, value / most) for value in figure["values"]]
        drawn += [_mark(at, goal / most, css) for goal, css in ((key.least, "goal"), (key.aim, "aim")) if goal is not None]
    return _svg(len(shown), drawn)


def _steps(steps: Mapping[str, Mapping[str, float]]) -> str:
    most = 1.1 * max((part for step in steps.values() for part in step.values()), default=1.0)
    kinds = (("s by the clock", "seconds", "clock"), ("s of CPU", "cpu", "cpu"), ("broker's CPU", "broker", "broker"))
    lines = [(f"{name}: {label}", step[part], css) for name, step in steps.items() for label, part, css in kinds]
    drawn = [shape for at, (name, value, css) in enumerate(lines) for shape in _bar(at, name, value / most, css, f"{value:.2f} s", name)]
    return _svg(len(lines), drawn)


def _peers(document: Mapping[str, Any]) -> str:
    """Bars of what is comparable by MB of segments, and what each peer does and does not do."""
    rates = [(peer["name"], peer["figures"]["mb_s_per_core"]) for peer in document["peers"] if "mb_s_per_core" in peer["figures"]]
    if "whole_mb_s_per_core" in document:
        rates.insert(0, ("writetime, the whole path", document["whole_mb_s_per_core"]["median"]))
    most = 1.1 * max((rate for _, rate in rates), default=1.0)
    drawn = [shape for at, (name, rate) in enumerate(rates)
             for shape in _bar(at, name, rate / most, "none", f"{rate:.2f} MB/s of segments a core", name)]  # fmt: skip
    rows = (
        (peer["name"], ", ".join(f"{name} {text_of(value)}" for name, value in peer["figures"].items()), peer["does"], peer["does_not"])
        for peer in document["peers"]
    )
    return _svg(len(rates), drawn) + _rows(("peer", "figures", "does", "does not"), rows)


def _table(document: Mapping[str, Any]) -> str:
    rows = []
    for name, key in KEYS.items():
        if name in document:
            figure = document[name]
            meaning = f"{key.meaning}. {figure['note']}" if "note" in figure else key.meaning
            spread = " to ".join(map(text_of, figure["spread"]))
            goals = map(text_of, (key.least, key.aim))
            rows.append((name, figure["median"], spread, figure["passes"], key.unit, *goals, meaning))
    return _rows(("figure", "median", "spread", "passes", "unit", "goal", "aim", "what it is"), rows)


# --- shapes


def _whole(title: str, parts: Iterable[str]) -> str:
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f"{head}<body>{chr(10).join(parts)}</body></html>\n"


def _plot(what: str, lines: Sequence[tuple[str, str, Sequence[tuple[float, float]]]]) -> str:
    """Lines through points, on scales from nothing to the largest value."""
    width, height, left = 640, 260, 70
    most_x = max((x for _, _, points in lines for x, _ in points), default=0) or 1
    most_y = 1.1 * max((y for _, _, points in lines for _, y in points), default=0) or 1
    drawn = [f'<path class="axis" d="M{left} 0V{height}H{left + width}"/>']
    for step in range(5):
        y = height * (1 - step / 4)
        drawn.append(f'<text x="{left - 6}" y="{max(12, y):.0f}" text-anchor="end">{most_y * step / 4:.3g}</text>')
    for x in sorted({x for _, _, points in lines for x, _ in points}):
        drawn.append(f'<text x="{left + x / most_x * width:.1f}" y="{height + 16}" text-anchor="middle">{x:,g}</text>')
    for at, (label, css, points) in enumerate(lines):
        places = [(left + x / most_x * width, height * (1 - y / most_y), y) for x, y in points]
        drawn.append(f'<polyline class="{css} line" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)}"/>')
        drawn += [f'<circle class="{css}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{value:.3g}</title></circle>' for x, y, value in places]
        drawn.append(f'<rect class="{css}" x="{left + width + 30}" y="{20 * at}" width="12" height="12"/>')
        drawn.append(f'<text x="{left + width + 48}" y="{20 * at + 11}">{escape(label)}</text>')
    drawn.append(f'<text x="{left + width / 2}" y="{height + 36}" text-anchor="middle">{escape(what)}</text>')
    size = f'width="{left + width + 200}" height="{height + 44}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(drawn)}</svg>'


def _svg(lines: int, drawn: Iterable[str]) -> str:
    width, height = _NAMES + _BARS + _LABELS, _LINE * lines + 8
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">{"".join(drawn)}</svg>'
    )


def _bar(at: int, name: str, share: float, css: str, label: str, title: str) -> list[str]:
    y = _LINE * at + 4
    width = max(1.0, share * _BARS)
    return [
        f'<text x="{_NAMES - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>',
        f'<rect class="track" x="{_NAMES}" y="{y}" width="{_BARS}" height="{_LINE - 8}"/>',
        f'<rect class="{css}" x="{_NAMES}" y="{y}" width="{width:.1f}" height="{_LINE - 8}"><title>{escape(title)}</title></rect>',
        f'<text x="{_NAMES + _BARS + 8}" y="{y + 13}">{escape(label)}</text>',
    ]


def _dot(at: int, share: float) -> str:
    return f'<circle class="pass" cx="{_NAMES + share * _BARS:.1f}" cy="{_LINE * at + 13}" r="2.5"/>'


def _mark(at: int, share: float, css: str) -> str:
    x = _NAMES + share * _BARS
    return f'<line class="{css}" x1="{x:.1f}" x2="{x:.1f}" y1="{_LINE * at + 2}" y2="{_LINE * at + _LINE - 2}"/>'


def _rows(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>" if body else "<p>None.</p>"


def _cell(value: object) -> str:
    if isinstance(value, int | float):
        return f'<td class="n">{text_of(value)}</td>'
    return f"<td>{escape(str(value))}</td>"
