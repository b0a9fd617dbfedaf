"""The committed results: every page is what its numbers say, and the index names all of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from topshelf.bench import read_plan, read_report

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


def test_the_table_of_the_readme_is_that_of_quick():
    kept = read_report(results.RESULTS / "quick")
    text = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    for run in kept.results.runs:
        cells = [run.group, run.method]
        for metric in ("recall@20", "ndcg@20"):
            published = kept.results.published.get((run.place, metric))
            cells += [f"{run.metrics['paper'][metric]:.4f}", f"{published:.4f}" if published else ""]
        assert f"| {' | '.join(cells)} |" in text
    (gain,) = [
        one
        for one in kept.comparisons
        if (one.protocol, one.metric, one.among) == ("paper", "ndcg@20", "MF") and one.place.method == "SL@20"
    ]
    said = f"SL@20 is {gain.gain:.1%} above SL in NDCG@20 (95%: {gain.low:.4f} to {gain.high:.4f}, p < 0.001)"
    assert said in " ".join(text.split())
