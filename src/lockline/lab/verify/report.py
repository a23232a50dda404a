"""A run as data, and as one page that needs nothing but itself."""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import Any

from . import figures, picture
from .machine import RunOutcome
from .verdict import BROKEN, HELD, MEANS, PromiseFinding

STYLE = """
:root{color-scheme:light dark;--ink:#1d2430;--paper:#fff;--soft:#5b6675;--rule:#d9dee6;--good:#1a7f4b;--bad:#c0262d;--none:#8a6d1c;--bar:#3567b7}
@media (prefers-color-scheme:dark){:root{--ink:#e7ebf1;--paper:#14181f;--soft:#a3adbb;--rule:#333c49;--good:#4cc38a;--bad:#ff6b6f;--none:#d9b650;--bar:#7aa7f0}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:900px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}code{overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.35rem .6rem .35rem 0;border-bottom:1px solid var(--rule);vertical-align:top}
.n{text-align:right;font-variant-numeric:tabular-nums}.held{color:var(--good)}.broken{color:var(--bad);font-weight:600}.not-exercised{color:var(--none)}
.soft,.small{color:var(--soft);font-size:.9rem}svg{width:100%;height:auto}svg.plot{font:12px system-ui,sans-serif}svg.plot text{fill:var(--ink)}
.line{fill:none;stroke:var(--bar);stroke-width:1.5}.axis{stroke:var(--soft)}.fault{fill:var(--none);opacity:.25}
"""


def as_json(outcome: RunOutcome) -> dict[str, Any]:
    """For programs."""
    verdict, history = outcome.verdict, outcome.history
    waits, fairness = figures.waits_by_kind(history), figures.fairness(history)
    return {
        "url": outcome.shown_url,
        "verdict": word(outcome),
        "promises": [
            {
                "promise": finding.promise,
                "means": MEANS[finding.promise],
                "state": finding.state,
                "checked": finding.checked,
                "violations": finding.broken,
                "text": finding.text,
            }
            for finding in verdict.findings
        ],
        "seconds": round(history.ended - history.began, 3),
        "seed": outcome.wish.seed,
        "workers": outcome.wish.workers,
        "ttl": outcome.wish.ttl,
        "grants": verdict.grants,
        "unknown": verdict.unknown,
        "stale_accesses_refused": verdict.refused,
        "updates_lost_without_fence": verdict.lost_without_fence,
        "faults": dict(Counter(fault.kind for fault in history.faults)),
        "network_faults": outcome.network or "exercised",
        "fairness": None if fairness is None else round(fairness, 4),
        "waits": {
            kind: {"count": one.count, "p50": round(one.median, 6), "p99": round(one.p99, 6), "longest": round(one.longest, 6)}
            for kind, one in waits.items()
        },
        "notes": outcome.notes,
    }  # fmt: skip


def word(outcome: RunOutcome) -> str:
    """The verdict in a word."""
    return {0: "held", 1: "broken", 2: "inconclusive"}[outcome.verdict.code]


def page(outcome: RunOutcome) -> str:
    """The whole report: one file, no script, nothing from elsewhere."""
    return document(f"lockline verify: {word(outcome)}", body(outcome))


def document(title: str, content: str) -> str:
    """A page around it."""
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width,initial-scale=1'>"
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{content}</body></html>\n"
    )


def body(outcome: RunOutcome) -> str:
    """What there is to say about one run."""
    verdict, history = outcome.verdict, outcome.history
    kinds, fairness = Counter(fault.kind for fault in history.faults), figures.fairness(history)
    sections = [
        f"<h1>lockline verify: <span class='{word(outcome)}'>{word(outcome)}</span></h1>",
        f"<p><code>{escape(outcome.shown_url)}</code><br><span class='soft'>{history.ended - history.began:.0f} s, "
        f"{outcome.wish.workers} worker processes, seed {outcome.wish.seed}, ttl {outcome.wish.ttl:g} s; "
        f"{escape(outcome.guarantees.tolerates)}</span></p>",
        "<h2>The promises</h2>",
        _table(("promise", "", "what was found"), [_promise(finding) for finding in verdict.findings]),
    ]
    for finding in verdict.broken:
        if finding.first is not None and finding.first.operations:
            sections.append(f"<h2>The first violation of: {escape(finding.promise)}</h2>")
            sections.append(
                f"<p>{escape(finding.first.text)}</p>{picture.time_line(finding.promise, finding.first, history)}"
            )
            break
    sections += [
        "<h2>Counts</h2>",
        _table(
            ("what", "count"),
            [
                _row("grants", f"{verdict.grants:,}"),
                _row("operations without an answer: unknown, neither for nor against", f"{verdict.unknown:,}"),
                _row("late accesses that the fence refused", f"{verdict.refused:,}"),
                _row("updates lost at the register without a fence", f"{verdict.lost_without_fence:,}"),
                _row(
                    "fairness between workers that nothing was done to (Jain's index)",
                    "there were no two" if fairness is None else f"{fairness:.3f}",
                ),
                *(_row(f"fault: {kind}", str(count)) for kind, count in sorted(kinds.items())),
            ],
        ),
        f"<p class='soft'>Faults of the network: {escape(outcome.network or 'by a proxy before each server')}.</p>",
        "<h2>Grants per second, and the faults</h2>",
        picture.plot(figures.per_second(history), history.faults, history.began, "grants per second", "/s"),
        "<h2>The longest wait in each second</h2>",
        picture.plot(figures.longest_per_second(history), history.faults, history.began, "longest wait", "s"),
        "<h2>Waits</h2>",
        _table(
            ("of", "grants", "p50", "p99", "longest"),
            [
                _row(
                    kind, f"{one.count:,}", *(f"{value * 1000:,.1f} ms" for value in (one.median, one.p99, one.longest))
                )
                for kind, one in figures.waits_by_kind(history).items()
            ],
        ),
    ]
    if outcome.notes:
        sections.append("<h2>Notes</h2><ul>" + "".join(f"<li>{escape(note)}</li>" for note in outcome.notes) + "</ul>")
    return "".join(sections)


def _promise(finding: PromiseFinding) -> str:
    kind = {HELD: "held", BROKEN: "broken"}.get(finding.state, "not-exercised")
    times = f" ({finding.broken:,} times)" if finding.broken > 1 else ""
    return (
        f"<tr><td>{escape(finding.promise)}<br><span class='small'>{escape(MEANS[finding.promise])}</span></td>"
        f"<td class='{kind}'>{finding.state}{times}</td><td>{escape(finding.text)}</td></tr>"
    )


def _row(first: str, *others: str) -> str:
    return f"<tr><td>{escape(first)}</td>{''.join(f'<td class=n>{escape(other)}</td>' for other in others)}</tr>"


def _table(head: tuple[str, ...], rows: list[str]) -> str:
    titles = "".join(
        f"<th class={'n' if number and len(head) != 3 else 't'}>{title}</th>" for number, title in enumerate(head)
    )
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
