"""The result of `octet eval` as a table in the terminal, and as one page of HTML."""

import html
import json
import math
import os
from pathlib import Path

from ..errors import OctetError


def _columns(result: dict) -> list[tuple]:
    """(title, explanation, function from a candidate to its cell)."""
    some = result["candidates"]
    columns = [
        ("model", "the file, and how it was run", lambda c: c["file"]),
        ("KL mean", "KL(control || model), nats, full vocabulary", lambda c: _kl(c["kl"]["mean"])),
        ("median", "of the same", lambda c: _kl(c["kl"]["median"])),
        ("p95", "95th percentile", lambda c: _kl(c["kl"]["p95"])),
        ("p99", "99th percentile", lambda c: _kl(c["kl"]["p99"])),
        ("max", "the largest", lambda c: _kl(c["kl"]["max"])),
        ("top-1 %", "positions with the control's likeliest token", lambda c: f"{c['top1']:.2%}"),
    ]
    if some[0]["ppl_ratio"] is not None:
        columns.append(
            ("ppl ×", "perplexity over the control's", lambda c: f"{c['ppl_ratio']:.5f}")
        )
    if some[0]["first_token_kl"] is not None:
        columns.append(
            ("first KL", "mean KL at the first token", lambda c: _kl(c["first_token_kl"]))
        )
    if some[0]["mmlu"]:
        columns += [
            ("acc %", "questions answered rightly", lambda c: f"{c['mmlu']['accuracy']:.1%}"),
            ("changed", "answers unlike the control's", lambda c: str(c["mmlu"]["answer_changes"])),
            ("flips", "answers now right or now wrong", lambda c: str(c["mmlu"]["flips"])),
            ("KL there", "mean KL where the answer is due", lambda c: _kl(c["mmlu"]["kl_mean"])),
        ]
    return [
        *columns,
        ("prompt/s", "tokens read per second", lambda c: f"{c['prompt_tps']:.0f}"),
        ("gen/s", "tokens generated per second", lambda c: f"{c['gen_tps']:.1f}"),
        ("RSS MiB", "peak memory of the process", lambda c: f"{c['peak_rss_mib']:.0f}"),
        ("file MiB", "size of the file", lambda c: f"{c['file_mib']:.0f}"),
        ("time s", "the whole run", lambda c: f"{c['wall_s']:.1f}"),
    ]


def line(candidate: dict) -> str:
    """A candidate in a few words, for those who wait for the others."""
    text = f"mean KL {_kl(candidate['kl']['mean'])}, top-1 {candidate['top1']:.2%}"
    if candidate["mmlu"]:
        text += f", {candidate['mmlu']['flips']} flips of {candidate['mmlu']['n']}"
    return f"{text}, {candidate['wall_s']:.0f} s"


def _kl(value: float) -> str:
    return "0" if value == 0 else f"{value:.2e}" if value < 1e-4 else f"{value:.5f}"


def table(result: dict) -> str:
    """The result as aligned text."""
    columns = _columns(result)
    rows = [[title for title, _, _ in columns]]
    rows += [[cell(c) for _, _, cell in columns] for c in result["candidates"]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    lines = [
        "  ".join(
            text.ljust(width) if i == 0 else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    lines.append(f"{result['candidates'][0]['positions']} positions; {_read(result)}")
    return "\n".join(lines)


def _read(result: dict) -> str:
    of = result["inputs"]
    parts = []
    if of["text"]:
        skipped = f", the first {of['skip']} positions skipped" if of["skip"] else ""
        parts.append(f"{of['text']} in chunks of {of['chunk']} tokens{skipped}")
    if of["prompts"]:
        parts.append(f"{of['prompts']} and {of['continue']} tokens of the control's continuation")
    if of["mmlu"]:
        parts.append(f"{of['mmlu']}, {result['candidates'][0]['mmlu']['n']} questions")
    return "; ".join(parts) + f"; {of['threads']} threads, {of['vocabulary']} tokens in vocabulary"


# ---- the page ----

_STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .2em .7em; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
th { cursor: help }
svg text { font: 12px sans-serif; fill: #444 }
"""
_COLOURS = ("#1f6fb4", "#d95f02", "#1b9e77", "#b0288c", "#7a6a00", "#666666")


def prepare(folder: str) -> None:
    """Make the folder; an OctetError now is better than after the measurement."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as why:
        raise OctetError(f"{folder}: cannot be made: {why.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise OctetError(f"{folder}: cannot be written to")


def write(folder: str, result: dict) -> None:
    """Write eval.html and eval.json."""
    kept = json.dumps(result, indent=2)
    for name, text in (("eval.json", kept), ("eval.html", page(result))):
        part = Path(folder) / f"{name}.part"
        part.write_text(text, encoding="utf-8")
        os.replace(part, Path(folder) / name)


def page(result: dict) -> str:
    """The result as one HTML page that needs nothing else."""
    columns = _columns(result)
    head = "".join(f'<th title="{html.escape(e)}">{html.escape(t)}</th>' for t, e, _ in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell(c))}</td>" for _, _, cell in columns) + "</tr>\n"
        for c in result["candidates"]
    )
    notes = "".join(f"<li><b>{html.escape(t)}</b>: {html.escape(e)}</li>" for t, e, _ in columns)
    return f"""<!doctype html>
<meta charset="utf-8">
<title>octet eval: {html.escape(result["control"])}</title>
<style>{_STYLE}</style>
<h1>Fidelity to {html.escape(result["control"])}</h1>
<p>Measured on {html.escape(_read(result))}.</p>
<table><tr>{head}</tr>
{body}</table>
<h2>KL divergence by share of positions</h2>
{_plot(result["candidates"][1:])}
<p>A point (80 %, 10⁻³) says that 80 % of the positions diverge by at most 0.001 nats.</p>
<h2>Columns</h2>
<ul>{notes}</ul>
"""


def _plot(candidates: list[dict]) -> str:
    """Quantiles of the divergence, on a logarithmic scale."""
    lowest, highest = -8, 1
    width, height, left = 640, 320, 60

    def place(share: float, value: float) -> str:
        power = min(max(math.log10(max(value, 1e-300)), lowest), highest)
        y = height * (highest - power) / (highest - lowest)
        return f"{left + width * share:.1f},{10 + y:.1f}"

    parts = []
    for power in range(lowest, highest + 1):
        x, y = place(0, 10.0**power).split(",")
        parts.append(f'<path d="M{x} {y}h{width}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{float(y) + 4}" text-anchor="end">1e{power}</text>')
    for share in (0, 0.2, 0.4, 0.6, 0.8, 1):
        x = left + width * share
        parts.append(f'<text x="{x}" y="{height + 28}" text-anchor="middle">{share:.0%}</text>')
    for number, candidate in enumerate(candidates):
        colour = _COLOURS[number % len(_COLOURS)]
        values = candidate["quantiles"]
        points = " ".join(place(i / (len(values) - 1), v) for i, v in enumerate(values))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        y = height + 52 + 18 * number
        parts.append(f'<path d="M{left} {y - 4}h20" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{left + 28}" y="{y}">{html.escape(candidate["file"])}</text>')
    total = height + 60 + 18 * len(candidates)
    return f'<svg width="{left + width + 20}" height="{total}">{"".join(parts)}</svg>'
