"""The committed results: every page is what its numbers say, and the index names all of them."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import pytest

from benches import PLAN, measured, place, plan_of, results_of, work_here, write_clicks
from topshelf.bench import Report, read_plan, read_report
from topshelf.bench.folder import BenchFolder
from topshelf.bench.results import Place
from topshelf.bench.summary import scores
from topshelf.bench.worker import ACTIVITY

DOCS = Path(__file__).parents[2] / "docs"
SPEC = importlib.util.spec_from_file_location("docs_results", DOCS / "results.py")
results = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(results)


@pytest.mark.parametrize("folder", results.pages(), ids=lambda path: path.name)
def test_a_page_is_what_its_report_says(folder):
    assert (folder / "report.md").read_text(encoding="utf-8") == results.page(folder)


@pytest.mark.parametrize("folder", results.pages(), ids=lambda path: path.name)
def test_published_figures_of_a_page_are_those_of_its_plan(folder):
    plan, kept = read_plan(folder.name)[1], read_report(folder).results
    figures = {value for entry in plan.published for value in entry.values.values()}
    assert set(kept.published.values()) <= figures
    assert kept.title == plan.title


def test_the_index_names_every_page():
    assert (results.RESULTS / "README.md").read_text(encoding="utf-8") == results.index()
    assert results.pages()


@pytest.mark.parametrize("page", results.marked_pages(), ids=lambda path: path.name)
def test_the_tables_of_other_pages_are_those_of_their_results(page):
    assert page.read_text(encoding="utf-8") == results.filled(page)
    text = page.read_text(encoding="utf-8")
    assert text.count("<!-- results:") == text.count(results.END) == len(results.MARK.findall(text))


def test_the_readme_and_the_measured_pages_have_tables_of_results():
    names = {page.relative_to(DOCS.parent).as_posix() for page in results.marked_pages()}
    wanted = {
        "README.md",
        "docs/where-we-stand.md",
        "docs/speed.md",
        "docs/losses/slatk.md",
        "docs/losses/measured.md",
        "docs/models/measured.md",
    }
    assert wanted <= names


def test_finished_cells_of_shipped_plans_are_kept_with_the_metrics_that_they_report(tmp_path, monkeypatch):
    plan = plan_of(PLAN, write_clicks(tmp_path / "clicks.csv"))
    work_here(plan, tmp_path / "bench")
    monkeypatch.setattr(results, "shipped_plans", lambda: {"small": None})
    monkeypatch.setattr(results, "read_plan", lambda name: (name, plan))
    assert results.keep(tmp_path / "bench", tmp_path / "kept") == 4
    assert results.keep(tmp_path / "bench", tmp_path / "kept") == 0
    whole, kept = BenchFolder(tmp_path / "bench"), BenchFolder(tmp_path / "kept")
    assert kept.results() == whole.results()
    for key in kept.results():
        names = kept.per_user(key).columns
        assert names == ["standard/ndcg@5", "standard/recall@5", ACTIVITY]
        assert kept.per_user(key).equals(whole.per_user(key).select(names), null_equal=True)


def test_the_committed_cells_are_whole():
    kept = BenchFolder.open(results.KEPT)
    for key in kept.results():
        assert kept.per_user(key).height


def test_a_table_has_a_row_per_place_with_what_was_published(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"<!-- results: quick; protocols = paper; groups = MF; also = epochs -->\nold\n{results.END}\n")
    text = results.filled(page)
    kept = read_report(results.RESULTS / "quick").results
    heads = "method | Recall@20 | published Recall@20 | NDCG@20 | published NDCG@20 | best epochs"
    assert f"| {heads} |" in text
    assert "old" not in text
    for run in kept.runs:
        cells = [run.method]
        for metric in ("recall@20", "ndcg@20"):
            published = kept.published.get((run.place, metric))
            cells += [f"{run.metrics['paper'][metric]:.4f}", f"{published:.4f}" if published else ""]
        assert (f"| {' | '.join([*cells, str(run.facts['best_epoch'])])} |" in text) == (run.group == "MF")


def test_methods_as_columns_have_the_gain_of_ours(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        f"<!-- results: backbones; columns = methods; metrics = ndcg@20; data = Health; over = SL -->\n{results.END}"
    )
    kept = read_report(results.RESULTS / "backbones").results
    table = scores(kept)
    means = [table[Place("Health", "MF", method), "paper", "ndcg@20"].mean for method in ("BPR", "SL", "PSL", "SL@20")]
    shown = " | ".join(f"{mean:.4f}" for mean in means)
    text = results.filled(page)
    assert "| group | protocol | BPR | SL | PSL | SL@20 | SL@20 over SL |" in text
    assert f"| MF | paper | {shown} | {means[3] / means[1] - 1:+.1%} |" in text
    assert len(text.splitlines()) == 12


def test_a_table_has_what_varies_and_facts_of_the_runs(tmp_path, monkeypatch):
    facts = {"seconds": 6.0, "epochs": 4, "peak_mib": 500.4, "valid_score": 0.25}
    runs = [
        dataclasses.replace(run, facts={**run.facts, **facts, "best_epoch": run.seed + 3})
        for run in (measured("SL@20", [0.1 * x, 0.3], x=x, seed=seed) for x in (1, 2) for seed in (0, 1))
    ]
    kept = results_of(runs, x_label="N", more=[place("SL@20", x=3)])
    Report(kept, [], [], []).write(tmp_path / "effective-n-health")
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    page = tmp_path / "page.md"
    also = "runs, epochs, seconds, seconds per epoch, memory, validation"
    page.write_text(f"<!-- results: effective-n-health; also = {also} -->\n{results.END}\n")
    lines = results.filled(page).splitlines()
    assert lines[1:6] == [
        "| method | N | NDCG@5 | runs | best epochs | seconds | seconds per epoch | peak MiB | validation |",
        "|---|---|---|---|---|---|---|---|---|",
        "| SL@20 | 1 | 0.2000 ± 0.0000 | 2 | 3, 4 | 6.0 | 1.50 | 500 | 0.2500 |",
        "| SL@20 | 2 | 0.2500 ± 0.0000 | 2 | 3, 4 | 6.0 | 1.50 | 500 | 0.2500 |",
        "| SL@20 | 3 | – | 0 |  |  |  |  |  |",
    ]
    assert lines[7].startswith(
        "4 runs, seeds 0, 1, protocol standard, 2026-01-01; `topshelf bench run effective-n-health`;"
    )
    assert "(effective-n-health/report.md)" in lines[7]


def test_a_table_of_what_was_not_run_says_so_and_a_wrong_mark_is_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"<!-- results: table2-book -->\n{results.END}\n")
    assert "Not run yet: `topshelf bench run table2-book`." in results.filled(page)
    for words, message in (
        ("nope", "must name a plan"),
        ("quick; colour = red", "must be one of data, groups"),
        ("quick; also = luck", "also of .* must be of: runs, seconds, .*, got luck"),
        ("quick; groups = none", "groups of quick must be of: MF, classics, got none"),
    ):
        page.write_text(f"<!-- results: {words} -->\n{results.END}\n")
        with pytest.raises(SystemExit, match=message):
            results.filled(page)


def test_what_is_said_of_quick_is_what_its_tests_say():
    kept = read_report(results.RESULTS / "quick")
    text = (DOCS / "where-we-stand.md").read_text(encoding="utf-8")
    (gain,) = [
        one
        for one in kept.comparisons
        if (one.protocol, one.metric, one.among) == ("paper", "ndcg@20", "MF") and one.place.method == "SL@20"
    ]
    said = f"SL@20 is {gain.gain:.1%} above SL in NDCG@20 (95%: {gain.low:.4f} to {gain.high:.4f}, p < 0.001)"
    assert said in " ".join(text.split())
