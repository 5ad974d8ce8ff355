"""The result of `octet eval` as a table in the terminal, and as one page of HTML."""

import html
import json
import os
import re
from pathlib import Path

from ..errors import OctetError
from . import plots


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
        ("mean 95 %", "interval of the mean", lambda c: _between(c["kl"]["mean_interval"], _kl)),
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
            (
                *("flips 95 %", "their interval"),
                lambda c: _between(c["mmlu"]["flips_interval"], lambda v: f"{v:.0f}"),
            ),
            (
                *("p", "sign test: as many answers becoming right as wrong"),
                lambda c: f"{c['mmlu']['sign_test_p']:.2f}",
            ),
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


def _between(interval: list[float] | None, text) -> str:
    return f"{text(interval[0])}–{text(interval[1])}" if interval else "?"


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
    lines += [worst for c in result["candidates"] if (worst := _worst(c))]
    return "\n".join(lines)


def _worst(candidate: dict) -> str | None:
    """The products that lose most."""
    if not candidate.get("layers"):
        return None
    some = ", ".join(f"{one['name']} {one['error']:.2%}" for one in candidate["layers"][:3])
    return f"{candidate['file']}: largest errors of products: {some}"


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
    others = result["candidates"][1:]
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
{plots.lines(_shares(others), "share of positions", "KL")}
<p>A point (80 %, 10⁻³) says that 80 % of the positions diverge by at most 0.001 nats.</p>
{_more(others)}
<h2>Columns</h2>
<ul>{notes}</ul>
"""


def _shares(candidates: list[dict]) -> dict[str, list]:
    return {
        c["file"]: [(100 * i / (len(c["quantiles"]) - 1), v) for i, v in enumerate(c["quantiles"])]
        for c in candidates
    }


def _more(candidates: list[dict]) -> str:
    """The plots of what was asked for."""
    parts = []
    if any(c["by_position"] for c in candidates):
        series = {c["file"]: [tuple(p) for p in c["by_position"]] for c in candidates}
        parts.append(
            "<h2>KL divergence by position</h2>"
            + plots.lines(series, "tokens before it in its chunk", "mean KL")
            + "<p>Whether errors grow as the context does.</p>"
        )
    with_layers = [c for c in candidates if c.get("layers")]
    if with_layers:
        order = sorted({one["name"] for c in with_layers for one in c["layers"]}, key=_natural)
        place = {name: float(i) for i, name in enumerate(order)}
        series = {
            c["file"]: [(place[o["name"]], o["error"], o["name"]) for o in c["layers"]]
            for c in with_layers
        }
        worst = "".join(f"<li>{html.escape(_worst(c))}</li>" for c in with_layers)
        parts.append(
            "<h2>Error of each product alone</h2>"
            + plots.dots(series, "weights, in the order of their names", "relative output error")
            + f"<p>Given the control's inputs; names where the pointer rests.</p><ul>{worst}</ul>"
        )
    series = {c["file"]: [(c["gen_tps"], c["kl"]["mean"], c["file"])] for c in candidates}
    parts.append(
        "<h2>Speed against fidelity</h2>"
        + plots.dots(series, "tokens generated per second", "mean KL")
        + "<p>Right and low is better.</p>"
    )
    return "\n".join(parts)


def _natural(name: str) -> list:
    """blk.2 before blk.10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
