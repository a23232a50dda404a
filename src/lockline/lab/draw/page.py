"""The whole matrix as one page that needs nothing from anywhere: no script, style or font of others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files

from ... import __version__
from ..failures.face import Failure
from ..locks.face import PublishedLock
from ..trace import TraceEvent
from ..verdicts import Outcome, Verdict
from .svg import svg

CLASSES = {
    Verdict.LOST_UPDATE: "lost",
    Verdict.TWO_HOLDERS: "two",
    Verdict.STUCK: "stuck",
    Verdict.LATE: "late",
    Verdict.COSTLY: "costly",
    Verdict.SAFE: "safe",
    Verdict.NOT_APPLICABLE: "none",
    Verdict.MISSING: "missing",
    Verdict.FAILED: "failed",
}

HOME = "https://github.com/lockline/lockline/blob/main/"
"""Where the documentation is."""


def page(
    outcomes: Mapping[tuple[str, str], Outcome],
    locks: Mapping[str, type[PublishedLock]],
    failures: Mapping[str, Failure],
    seconds: float,
    home: str = HOME,
) -> str:
    """The page, with every run's picture in it."""
    rows = [lock for lock in locks if any(key[0] == lock for key in outcomes)]
    columns = [failure for failure in failures if any(key[1] == failure for key in outcomes)]
    template = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    script = files(__package__).joinpath("page.js").read_text(encoding="utf-8")
    style = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    judged = [outcome for outcome in outcomes.values() if outcome.verdict.judged]
    counts = {
        verdict: sum(1 for outcome in judged if outcome.verdict is verdict) for verdict in Verdict if verdict.judged
    }
    wrong = [outcome for outcome in outcomes.values() if not outcome.as_expected]
    not_run = sorted({outcome.reason for outcome in outcomes.values() if outcome.verdict is Verdict.MISSING})
    summary = ", ".join(f"{number} {verdict.value}" for verdict, number in counts.items() if number)
    told = f"{len(judged)} runs in {seconds:.0f} s on real servers: {summary}."
    told += f" {len(wrong)} not as the literature says." if wrong else " Every one as the literature says."
    filled = {
        "STYLE": style,
        "SCRIPT": script,
        "SUMMARY": escape(told),
        "LEGEND": "".join(
            f'<span class="chip {CLASSES[verdict]}">{escape(verdict.value)}</span>'
            for verdict in Verdict
            if verdict is not Verdict.FAILED
        ),
        "MISSING": "".join(f'<p class="hint">Not run: {escape(reason)}</p>' for reason in not_run),
        "HEAD": "".join(
            f'<th scope="col" title="{escape(failures[name].story)}"><span>{escape(failures[name].title)}</span></th>'
            for name in columns
        ),
        "BODY": "".join(_row(lock, locks[lock], columns, outcomes, failures) for lock in rows),
        "RUNS": _runs(outcomes, locks, failures, home),
        "VERSION": escape(__version__),
    }
    for name, text in filled.items():
        template = template.replace("{{" + name + "}}", text)
    return template


def _row(
    lock: str,
    made: type[PublishedLock],
    columns: list[str],
    outcomes: Mapping[tuple[str, str], Outcome],
    failures: Mapping[str, Failure],
) -> str:
    cells = []
    for failure in columns:
        outcome = outcomes.get((lock, failure))
        if outcome is None:
            cells.append("<td></td>")
            continue
        short = outcome.figure if outcome.figure and outcome.verdict is not Verdict.SAFE else SHORT[outcome.verdict]
        wrong = "" if outcome.as_expected else " wrong"
        name = escape(f"{lock}/{failure}")
        label = escape(f"{made.title}, {failures[failure].title}: {outcome.verdict.value} {outcome.figure}".strip())
        if not outcome.verdict.judged:
            cells.append(
                f'<td class="{CLASSES[outcome.verdict]}{wrong}" title="{escape(outcome.reason)}"><span>{short}</span></td>'
            )
            continue
        cells.append(
            f'<td class="{CLASSES[outcome.verdict]}{wrong}"><button data-run="{name}" aria-label="{label}" '
            f'title="{escape(outcome.reason)}">{escape(short)}</button></td>'
        )
    group = ' class="ours"' if lock.startswith("lockline") else ""
    return f'<tr{group}><th scope="row" title="{escape(made.source)}">{escape(made.title)}</th>{"".join(cells)}</tr>'


SHORT = {**CLASSES, Verdict.NOT_APPLICABLE: "-", Verdict.MISSING: "?", Verdict.FAILED: "!"}
"""What stands in a cell that has no figure."""


def _runs(
    outcomes: Mapping[tuple[str, str], Outcome],
    locks: Mapping[str, type[PublishedLock]],
    failures: Mapping[str, Failure],
    home: str,
) -> str:
    runs = {}
    for (lock, failure), outcome in outcomes.items():
        if not outcome.verdict.judged:
            continue
        runs[f"{lock}/{failure}"] = {
            "lock": locks[lock].title,
            "failure": failures[failure].title,
            "story": failures[failure].story,
            "verdict": outcome.verdict.value,
            "kind": CLASSES[outcome.verdict],
            "figure": outcome.figure,
            "cause": outcome.cause,
            "cure": outcome.cure,
            "link": home + outcome.link,
            "source": locks[lock].source,
            "command": f"lockline lab show {lock} {failure}",
            "expected": outcome.expected.value if outcome.expected else "",
            "facts": {key: str(value) for key, value in outcome.facts.items() if key != "writes"},
            "svg": svg(_slim(outcome), style=""),
        }
    # Inside a script element nothing may look like the beginning or the end of one.
    return json.dumps(runs, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")


def _slim(outcome: Outcome) -> Outcome:
    """A crowd's thousands of requests are a figure and no picture."""
    if len(outcome.events) < 1500:
        return outcome
    kept: tuple[TraceEvent, ...] = tuple(event for event in outcome.events if event.kind not in ("request", "reply"))
    return Outcome(**{name: getattr(outcome, name) for name in outcome.__slots__ if name != "events"}, events=kept)
