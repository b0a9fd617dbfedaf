"""A page on a run of every other task: its metrics, its curves, and the kept model group by group."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from documents import svmlight, table
from topshelf.config import assemble
from topshelf.report import report_page
from topshelf.testing.links import planted_links
from topshelf.training import fit

SMALL = {
    "ranking": {"model": {"name": "mlp"}},
    "sequences": {"model": {"name": "sasrec", "dim": 8, "max_length": 6}},
    "links": {"model": {"name": "gcn", "dim": 8}, "evaluate": {"n_negatives": 20}},
}
HEADINGS = {
    "ranking": ("Metrics", "Learning curves", "Group by group", "Data", "Training", "Make this page again"),
    "sequences": ("Metrics", "Coverage and popularity", "People", "Learning curves", "Group by group", "Data"),
    "links": ("Metrics", "Learning curves", "Group by group", "Data", "Training"),
}
LEFT_OUT = {
    "ranking": ("People", "Coverage and popularity", "Who gains"),
    "sequences": ("Who gains",),
    "links": ("People", "Coverage and popularity", "Who gains"),
}


def write_data(folder, task):
    path = folder / ("ranking.txt" if task == "ranking" else f"{task}.csv")
    if task == "ranking":
        path.write_text(svmlight(table()))
    elif task == "links":
        edges = np.concatenate([*planted_links().edges.values()])
        pl.DataFrame(edges, schema=["source", "target"]).write_csv(path)
    else:
        rows = [(user, (user * 7 + t) % 30, t) for user in range(60) for t in range(5 + user % 6)]
        pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row").write_csv(path)
    return path


@pytest.mark.parametrize("task", SMALL)
def test_a_run_of_every_task_has_a_page_with_the_parts_that_make_sense(tmp_path, task, monkeypatch):
    if task != "sequences":
        monkeypatch.setattr("topshelf.charts.can_plot", lambda: False)  # drawing takes seconds
    config = assemble(
        task=task, data=str(write_data(tmp_path, task)), k=3, more={**SMALL[task], "train": {"epochs": 2}}
    )
    fit(config, out=tmp_path / "run")
    html = report_page([tmp_path / "run"]).html()
    for heading in HEADINGS[task]:
        assert f"<h2>{heading}</h2>" in html
    for heading in LEFT_OUT[task]:
        assert f"<h2>{heading}</h2>" not in html
    kept = json.loads((tmp_path / "run" / "metrics.json").read_text())
    metric = "mrr" if task == "links" else "ndcg@3"
    low, high = kept["test_intervals"][metric]
    assert f"{kept['test'][metric]:.4f}<small>{low:.4f} to {high:.4f}</small>" in html
    assert "<h3>Beside simple references</h3>" in html
    assert ("<svg" in html) == (task == "sequences")
