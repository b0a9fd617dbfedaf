"""The table of a paper: booktabs, the best of a column bold, the second underlined, the gain of ours below a group."""

from __future__ import annotations

from topshelf.bench.results import Place, Results
from topshelf.bench.summary import scores
from topshelf.bench.tables import NOT_RUN, Scores, metric_name, one_line, shown

_SPECIAL = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}"}
_SPECIAL |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "–": "--"}


def escaped(text: str) -> str:
    return "".join(_SPECIAL.get(character, character) for character in one_line(text))


def document(results: Results) -> str:
    """A whole document with a table per protocol: pdflatex makes it a page, and its tables can be copied."""
    tables = "\n\n".join(table(results, protocol) for protocol in results.protocols)
    packages = "\\usepackage[margin=2cm,landscape]{geometry}\n\\usepackage{booktabs}\n\\usepackage[T1]{fontenc}"
    return f"\\documentclass{{article}}\n{packages}\n\\begin{{document}}\n{tables}\n\\end{{document}}\n"


def table(results: Results, protocol: str) -> str:
    """Rows are methods in their groups, columns the metrics of each dataset."""
    found = scores(results)
    measured = {(name, metric) for _, name, metric in found}
    metrics = [metric for metric in results.metrics if (protocol, metric) in measured] or list(results.metrics)
    columns = [(data, metric) for data in results.data for metric in metrics]
    rows = _rows(results)
    heads = " & ".join(f"\\multicolumn{{{len(metrics)}}}{{c}}{{{escaped(data)}}}" for data in results.data)
    names = " & ".join(escaped(metric_name(metric)) for _, metric in columns)
    lines = [f"& & {heads} \\\\", f"Group & Method & {names} \\\\", "\\midrule"]
    group: str | None = None
    for key in rows:
        if group is not None and key[0] != group:
            lines += [*_improvement(results, found, protocol, columns, group), "\\midrule"]
        label = escaped(key[0]) if key[0] != group else ""
        group = key[0]
        cells = [_cell(results, found, protocol, key, data, metric) for data, metric in columns]
        lines.append(f"{label} & {escaped(_name(key))} & {' & '.join(cells)} \\\\")
    lines += _improvement(results, found, protocol, columns, group or "")
    caption = escaped(f"{results.title}. Protocol {protocol}; means over seeds; best bold, second underlined.")
    body = "\n".join(lines)
    return (
        "\\begin{table}[t]\n\\centering\\small\n"
        f"\\caption{{{caption}}}\n\\begin{{tabular}}{{ll{'c' * len(columns)}}}\n\\toprule\n{body}\n\\bottomrule\n"
        "\\end{tabular}\n\\end{table}"
    )


Key = tuple[str, str, str]


def _rows(results: Results) -> list[Key]:
    return list(dict.fromkeys((place.group, place.method, shown(place.x)) for place in results.places))


def _name(key: Key) -> str:
    return f"{key[1]}, {key[2]}" if key[2] else key[1]


def _place(results: Results, key: Key, data: str) -> Place | None:
    for place in results.places:
        if (place.data, place.group, place.method, shown(place.x)) == (data, *key):
            return place
    return None


def _cell(results: Results, found: Scores, protocol: str, key: Key, data: str, metric: str) -> str:
    place = _place(results, key, data)
    if place is None or (place, protocol, metric) not in found:
        return escaped(NOT_RUN)
    own = found[place, protocol, metric].mean
    values = sorted(
        {
            round(one.mean, 4)
            for (other, name, measured), one in found.items()
            if (other.data, other.group, name, measured) == (data, key[0], protocol, metric)
        },
        reverse=True,
    )
    text = f"{own:.4f}"
    if len(values) > 1 and round(own, 4) == values[0]:
        return f"\\textbf{{{text}}}"
    return f"\\underline{{{text}}}" if len(values) > 2 and round(own, 4) == values[1] else text


def _improvement(
    results: Results, found: Scores, protocol: str, columns: list[tuple[str, str]], group: str
) -> list[str]:
    """The gain of ours over the best other method of the group, as the paper's tables have it."""
    if results.ours is None or results.x_label is not None:
        return []
    cells = []
    for data, metric in columns:
        own = {
            place.method: one.mean
            for (place, name, measured), one in found.items()
            if (place.data, place.group, name, measured) == (data, group, protocol, metric)
        }
        others = [value for method, value in own.items() if method != results.ours]
        has_both = results.ours in own and others
        cells.append(_signed(own[results.ours] / max(others) - 1) if has_both else "")
    if not any(cells):
        return []
    return [f"& Imp. & {' & '.join(cells)} \\\\"]


def _signed(gain: float) -> str:
    """A gain in percent; a hyphen is no minus."""
    return f"${'-' if gain < 0 else '+'}${escaped(f'{abs(gain):.2%}')}"
