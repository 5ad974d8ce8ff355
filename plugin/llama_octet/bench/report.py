"""Results as text."""


def of_layer(result: dict) -> str:
    """A synthetic layer."""
    if "dense" in result:
        what = f"{result['type']} {result['dense']}"
        head = ("tokens", "", "ours ms", "stock ms", "ratio")
    else:
        what = (
            f"{result['gate_up']}:{result['down']} {result['shape']}, {result['experts']} "
            f"experts, {result['used']} used, {result['glu']}"
            + (", merged" if result["merged"] else "")
        )
        head = ("tokens", "rows/expert", "ours ms", "stock ms", "ratio")
    lines = [
        f"{what}; {result['isa']}, {result['threads']} threads, {result['layout']}; "
        f"stock in {' + '.join(result['stock_buffers'])}",
        "{:>7}{:>13}{:>11}{:>11}{:>8}".format(*head),
    ]
    for row in result["rows"]:
        rows = "" if "dense" in result else f"{row['rows_per_expert']:.4g}"
        lines.append(
            f"{row['tokens']:>7}{rows:>13}{row['ours_ms']:>11.3f}{row['stock_ms']:>11.3f}"
            f"{row['ratio']:>8.2f}"
        )
    lines.append(f"largest relative difference of a row: {result['max_rel_err']:.2g}")
    return "\n".join(lines)


def of_model(result: dict) -> str:
    """A whole model."""
    lines = [f"{result['model']}; {result['isa']}, {result['threads']} threads"]
    if result["against"] != result["model"]:
        lines.append(f"stock: {result['against']}")
    lines.append(f"{'tokens/s':<22}{'ours':>10}{'stock':>10}{'ratio':>8}")
    for title, key in (("prompt", "prompt"), ("generation", "gen")):
        tokens = f"{title} ({result[key + '_tokens']})"
        ours, stock = result["ours"][key + "_tps"], result["stock"][key + "_tps"]
        lines.append(f"{tokens:<22}{ours:>10.1f}{stock:>10.1f}{ours / stock:>8.2f}")
    return "\n".join(lines)
