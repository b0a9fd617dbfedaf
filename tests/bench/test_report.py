"""What people read: Markdown, LaTeX, HTML, CSV and figures, from given numbers."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from xml.etree import ElementTree

import polars as pl
import pytest

from benches import measured, place, results_of
from topshelf import charts, files
from topshelf.bench import latex, plots, tables
from topshelf.bench.report import Report, read_report
from topshelf.errors import CheckpointError, ConfigError

GROUP = "MF & co"
MARKDOWN = r"""# Small_title $5 &lt;b>

3 of 4 cells, seeds 0, 2026-01-01.
Means over seeds ± their standard deviation (95% interval of the mean, Student's t).

**clicks, protocol standard**

| method | runs | NDCG@5 |
|---|---|---|
| SL_1 | 1 | 0.2000 |
| a\|b | 1 | 0.1500 |
| **100% &lt;b>** | **1** | **0.4000** |
| none | 0 | – |

**clicks, beside the published figures, protocol standard**

| method | NDCG@5 | published NDCG@5 | difference |
|---|---|---|---|
| SL_1 | 0.2000 | 0.2500 | -20.0% |

**100% &lt;b> against the best of the others, paired over users**

| against | gain | difference (95%) | p | p, Holm |
|---|---|---|---|---|
| SL_1 | +100.0% | +0.2000 (+0.1000 to +0.3000) | 0.131 | 0.131 |

Not run:

- not run yet: clicks, MF & co, none
"""
LATEX = r"""\begin{table}[t]
\centering\small
\caption{Small\_title \$5 <b>. Protocol standard; means over seeds; best bold, second underlined.}
\begin{tabular}{llc}
\toprule
& & \multicolumn{1}{c}{clicks} \\
Group & Method & NDCG@5 \\
\midrule
MF \& co & SL\_1 & \underline{0.2000} \\
 & a|b & 0.1500 \\
 & 100\% <b> & \textbf{0.4000} \\
 & none & -- \\
& Imp. & $+$100.00\% \\
\bottomrule
\end{tabular}
\end{table}"""


@pytest.fixture
def results():
    """Three methods of one seed, and one that was not run; names with special characters."""
    values = {"SL_1": [0.1, 0.3, 0.2, 0.2], "a|b": [0.1, 0.2, 0.2, 0.1], "100% <b>": [0.4, 0.4, 0.3, 0.5]}
    absent = place("none", group=GROUP)
    return results_of(
        [measured(name, users, group=GROUP) for name, users in values.items()],
        ours="100% <b>",
        title="Small_title $5 <b>",
        more=[absent],
        missing={absent: "not run yet"},
        published={(place("SL_1", group=GROUP), "ndcg@5"): 0.25},
        n_wanted=4,
    )


def test_markdown(results):
    assert Report.of(results).markdown([]) == MARKDOWN


def test_latex(results):
    assert latex.table(results, "standard") == LATEX
    assert latex.document(results).count(r"\begin{table}") == 1


def test_ties_are_both_bold_and_a_lone_method_is_not():
    runs = [measured(name, [value]) for name, value in (("a", 0.5), ("b", 0.5), ("c", 0.2), ("d", 0.1))]
    table = latex.table(results_of(runs), "standard")
    assert table.count(r"\textbf{0.5000}") == 2
    assert table.count(r"\underline{0.2000}") == 1
    assert r"\textbf" not in latex.table(results_of(runs[:1]), "standard")


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a_b & 5% of $x$ #1", r"a\_b \& 5\% of \$x\$ \#1"),
        (r"\input{/etc/passwd}", r"\textbackslash{}input\{/etc/passwd\}"),
        ("~^", r"\textasciitilde{}\textasciicircum{}"),
        ("two\n\nlines", "two lines"),
    ],
)
def test_latex_reads_every_label_as_text(text, escaped):
    assert latex.escaped(text) == escaped


def test_a_label_never_ends_a_row_of_markdown():
    grid = tables.Grid("title\nof two", ("a", "b"), (("x|y\n| z", "</td><script>"),))
    text = tables.markdown(grid)
    assert len(text.splitlines()) == 5
    assert text.splitlines()[-1] == r"| x\|y \| z | &lt;/td>&lt;script> |"
    assert "p < 0.001" in tables.markdown_text("p < 0.001")


def test_html_escapes_every_label(results):
    html = Report.of(results).page({}).html()
    assert "<b>" not in html
    assert "100% &lt;b&gt;" in html


@pytest.mark.skipif(
    not (shutil.which("pdflatex") or shutil.which("tectonic")), reason="neither pdflatex nor tectonic is installed"
)
def test_latex_compiles(results, tmp_path):
    (tmp_path / "table.tex").write_text(latex.document(results))
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error"] if shutil.which("pdflatex") else ["tectonic"]
    done = subprocess.run([*command, "table.tex"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "table.pdf").stat().st_size > 1000


FILES = {"cells.csv", "cells.parquet", "comparisons.csv", "published.svg", "report.html", "report.md", "scores.csv"}


def test_the_folder_has_every_file_and_is_the_same_each_time(results, tmp_path):
    contents = []
    for name in ("one", "two"):
        folder = Report.of(results).write(tmp_path / name)
        contents.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert set(contents[0]) == FILES | {"table.tex", "report.json"}
    assert contents[0] == contents[1]
    cells = pl.read_csv(tmp_path / "one" / "cells.csv")
    assert cells["value"].to_list() == pytest.approx([0.2, 0.15, 0.4])
    assert cells.equals(pl.read_parquet(tmp_path / "one" / "cells.parquet").cast(cells.schema))
    scores = pl.read_csv(tmp_path / "one" / "scores.csv")
    assert scores["published"].to_list() == [0.25, None, None]
    assert "](published.svg)" in contents[0]["report.md"].decode()
    assert ElementTree.fromstring(contents[0]["published.svg"]).tag == "{http://www.w3.org/2000/svg}svg"
    assert b"<svg" in contents[0]["report.html"]
    assert b" src=" not in contents[0]["report.html"]
    assert contents[0]["report.html"].count(b"<script") == 1  # the page's own
    assert contents[0]["report.html"].count(b"<link") == contents[0]["report.html"].count(b'href="data:,"') == 1


def test_a_report_is_made_again_from_its_file(results, tmp_path):
    report = Report.of(results)
    again = read_report(report.write(tmp_path / "one"))
    assert again.markdown(["published"]) == report.markdown(["published"])
    assert latex.document(again.results) == latex.document(results)
    assert again.comparisons == report.comparisons


def test_a_note_is_on_the_page_and_is_kept(results, tmp_path):
    noted = dataclasses.replace(results, note="Made by hand <b>.")
    report = read_report(Report.of(noted).write(tmp_path / "one"))
    assert report.markdown([]).splitlines()[4] == "Made by hand &lt;b>."
    assert report.results.note == noted.note


def test_a_report_of_another_form_is_refused(results, tmp_path):
    folder = Report.of(results).write(tmp_path / "one")
    content = files.read_sealed(folder / "report.json")
    del content["results"]["places"]
    files.write_sealed(folder / "report.json", content)
    with pytest.raises(CheckpointError, match="write the report again"):
        read_report(folder)


@pytest.mark.parametrize("values", [(0.0, 0.5), (1, 2.5), ("few", "many"), (True, False), (1, "two")])
def test_what_varies_is_a_column_and_a_figure_per_protocol(values, tmp_path):
    runs = [
        measured(name, [0.1 + at / 10, 0.2], x=x, seed=seed)
        for seed in (0, 1)
        for name in ("ours", "other")
        for at, x in enumerate(values)
    ]
    results = results_of(runs, x_label="how $much", ours="ours")
    folder = Report.of(results).write(tmp_path / "report")
    assert (folder / "standard.svg").is_file()
    header = "| method | how $much | runs | NDCG@5 |"
    assert header in (folder / "report.md").read_text()
    assert pl.read_csv(folder / "cells.csv").height == 8


def test_without_matplotlib_the_page_says_how_to_get_it(results, tmp_path, monkeypatch):
    monkeypatch.setattr("topshelf.charts.can_plot", lambda: False)
    folder = Report.of(results).write(tmp_path / "plain")
    assert not list(folder.glob("*.svg"))
    assert "matplotlib" in (folder / "report.html").read_text()


def test_seeds_have_a_deviation_and_an_interval_where_there_is_room():
    runs = [measured("one", [value], seed=seed) for seed, value in enumerate((0.1, 0.2, 0.3))]
    (grid,) = tables.grids(results_of(runs))
    assert grid.rows == (("one", "3", "0.2000 ± 0.1000 (-0.0484 to 0.4484)"),)


def test_what_is_partly_run_says_how_many_seeds_are_done():
    one = place("one")
    lines = tables.missing_lines(results_of([measured("one", [0.1])], missing={one: "failed: NaN"}))
    assert lines == ["failed: NaN: clicks, one (1 run done)"]


def test_a_report_of_nothing_and_one_in_a_file_are_refused(results, tmp_path):
    with pytest.raises(ConfigError, match="small has no finished cell yet; run it: topshelf bench run small"):
        Report.of(results_of([], more=[place("one")]))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot make the folder .*choose another --to"):
        Report.of(results).write(tmp_path / "file")


def test_words_are_at_their_place_in_the_plan_and_close_labels_are_thinned():
    _, (panel,) = charts.figure(4, 3)
    assert plots._mark_values(panel, ["exact", "sampled", "iid", "exact"]) == {"exact": 0, "sampled": 1, "iid": 2}
    assert plots._mark_values(panel, [2, 2.25, 2.5, 3, 8]) == {2: 2, 2.25: 2.25, 2.5: 2.5, 3: 3, 8: 8}
    assert [label.get_text() for label in panel.get_xticklabels()] == ["2", "", "2.5", "3", "8"]
