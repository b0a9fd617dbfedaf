"""The documents tell the truth: pages that are generated are current, examples run, links lead somewhere."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_the_settings_page_is_what_the_code_says():
    assert (ROOT / "docs" / "settings.md").read_text() == module(ROOT / "docs" / "generate.py").page()


@pytest.mark.parametrize("name", ["published", "searched"])
def test_the_readmes_tables_are_the_committed_results(name):
    result = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    assert module(ROOT / "benchmarks" / "published.py").table(result["rows"]) in (ROOT / "README.md").read_text()


def test_the_effective_n_table_is_the_committed_result():
    page = (ROOT / "docs" / "losses.md").read_text()
    result = json.loads((ROOT / "benchmarks" / "results" / "effective_n.json").read_text())
    for row in result["rows"]:
        assert f"| {row['variant']} | {row['valid']:.4f} | {row['test']:.4f} | {row['mean_threshold']:.2f} |" in page
    assert result["date"] in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_between_pages_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_a_page_names_exists(page):
    for name in re.findall(r"\b((?:benchmarks|examples|docs|tests)/[\w/.-]+\.(?:py|json|md))\b", page.read_text()):
        assert (ROOT / name).exists(), name


def test_the_loop_of_your_own_learns(capsys):
    untrained = module(ROOT / "examples" / "own_loop.py").main(epochs=0)
    trained = module(ROOT / "examples" / "own_loop.py").main(epochs=20)
    assert trained > 3 * untrained


def test_the_example_in_python_recommends(capsys):
    table = module(ROOT / "examples" / "in_python.py").main()
    assert table.height == 3
    assert table["item"][0] in {f"item-{i}" for i in range(10)}  # the block of user-0


def test_the_speed_table_is_the_committed_result():
    page = (ROOT / "docs" / "speed.md").read_text()
    result = json.loads((ROOT / "benchmarks" / "results" / "training.json").read_text())
    assert result["date"] in page
    for found in result["results"]:
        for label, speedup in found["speedup"].items():
            assert f"| {found['data']} | {label} | {found['seconds'][label]:.3f} | {speedup:,.0f}x |" in page


def test_the_speed_page_has_the_committed_overheads_and_qualities():
    page = (ROOT / "docs" / "speed.md").read_text()
    overhead = json.loads((ROOT / "benchmarks" / "results" / "overhead.json").read_text())
    for found in overhead["results"]:
        for label, seconds in found["seconds"].items():
            assert f"| {found['data']} | {label} | {seconds:.4f} | {found['ratio'][label] - 1:+.1%} |" in page
    convergence = json.loads((ROOT / "benchmarks" / "results" / "convergence.json").read_text())
    assert module(ROOT / "benchmarks" / "convergence.py").table(convergence["rows"]) in page


def test_the_scaling_page_is_the_committed_result(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    result = json.loads((ROOT / "benchmarks" / "results" / "scaling.json").read_text())
    assert module(ROOT / "benchmarks" / "scaling.py").figures(result) in (ROOT / "docs" / "scaling.md").read_text()


def test_the_cost_of_evaluation_is_the_committed_result():
    page = (ROOT / "docs" / "evaluation.md").read_text()
    result = json.loads((ROOT / "benchmarks" / "results" / "evaluation.json").read_text())
    assert result["date"] in page
    for found in result["results"]:
        for label, over in found["over_product"].items():
            assert f"| {found['data']} | {label} | {found['seconds'][label]:.3f} | {over:.2f}x |" in page


def test_the_readmes_speed_is_the_committed_result():
    page = " ".join((ROOT / "README.md").read_text().split())
    training = json.loads((ROOT / "benchmarks" / "results" / "training.json").read_text())
    for found in training["results"]:
        assert f"{found['speedup']['SL@20, exact catalogue']:,.0f}x" in page
    scaling = json.loads((ROOT / "benchmarks" / "results" / "scaling.json").read_text())
    assert f"{scaling['results']['runs'][-2]['peak']:.1f} GiB" in page
