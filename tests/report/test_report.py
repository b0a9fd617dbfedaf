"""The page on runs: it says what was measured, escapes what it is given, and refuses what does not belong together."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from importlib.metadata import version

import polars as pl
import pytest
import torch

from click_runs import HOSTILE, run_of
from command_line import run_topshelf
from topshelf import files
from topshelf.config import assemble
from topshelf.errors import CheckpointError, ConfigError, TopshelfWarning
from topshelf.report import report_page, write_report
from topshelf.report.people import HIT, LISTED, Lister
from topshelf.report.shown import open_runs
from topshelf.training import checkpoint, fit, load


class Texts(HTMLParser):
    """What a reader sees, tables as lists of rows by caption, and every address."""

    def __init__(self, html):
        super().__init__()
        self.tables, self.rows, self.addresses, self.tags = {}, [], [], []
        self.is_caption = self.is_cell = False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        given = dict(attrs)
        self.addresses += [given[name] for name in ("src", "href", "xlink:href", "action", "data") if given.get(name)]
        if tag == "table":
            self.rows = []
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.is_cell = True
        if tag == "small" and self.is_cell:
            self.rows[-1][-1] += " | "
        self.is_caption = tag == "caption"

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.is_cell = False

    def handle_data(self, data):
        if self.is_caption:
            self.tables[data] = self.rows
            self.is_caption = False
        if self.is_cell:
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def several(page):
    return page.read_text()


@pytest.fixture
def without_plots(monkeypatch):
    monkeypatch.setattr("topshelf.charts.can_plot", lambda: False)  # drawing takes seconds


def test_the_table_has_the_metrics_of_the_runs_and_the_best_is_bold(runs, several):
    rows = Texts(several).tables["Metrics at K = 5; the best of each column is bold"]
    assert rows[0][:3] == ["run", "NDCG@5", "Recall@5"]
    kept = {name: json.loads((runs / name / "metrics.json").read_text()) for name in ("slatk", "softmax", "ease")}
    for row, (name, metrics) in zip(rows[1:], kept.items(), strict=True):
        assert row[0].startswith(f"{name} | ")
        for place, metric in enumerate(("ndcg@5", "recall@5"), start=1):
            low, high = metrics["test_intervals"][metric]
            assert row[place] == f"{metrics['test'][metric]:.4f} | {low:.4f} to {high:.4f}"
    best = max(metrics["test"]["ndcg@5"] for metrics in kept.values())
    assert f'class="number best">{best:.4f}<' in several


def test_every_metric_of_every_run_is_there(runs, several):
    rows = {row[0]: row[1:] for row in Texts(several).tables["Every metric; the best is bold"]}
    kept = json.loads((runs / "ease" / "metrics.json").read_text())["test"]
    for name, shown in (("ndcg@20", "NDCG@20"), ("hit_rate@10", "Hit@10"), ("map@5", "MAP@5"), ("auc", "AUC")):
        assert rows[shown][2].startswith(f"{kept[name]:.4f}"), name


def test_the_coverage_and_the_groups_of_users_are_those_of_the_evaluation(runs, several):
    tables = Texts(several).tables
    kept = json.loads((runs / "slatk" / "metrics.json").read_text())["test"]
    coverage = tables["Lists of 5 items"][1]
    assert coverage == ["slatk", f"{kept['coverage@5']:.4f}", f"{kept['popularity_lift@5']:.4f}"]
    title, rows = next((title, rows) for title, rows in tables.items() if title.startswith("NDCG@5 by items in train"))
    assert [row[0] for row in rows] == ["run", "slatk", "softmax", "ease"]
    sizes = [int(n) for n in re.findall(r"\d+", title.partition("; ")[2])]
    mean = sum(n * float(score) for n, score in zip(sizes, rows[1][1:], strict=True)) / sum(sizes)
    assert mean == pytest.approx(kept["ndcg@5"], abs=2e-4)


def test_the_first_run_is_tested_against_the_others(runs, several):
    rows = Texts(several).tables["Paired over users: bootstrap interval, two-sided sign-flip test"]
    assert [row[0] for row in rows[1:]] == ["softmax", "ease"]
    means = [json.loads((runs / name / "metrics.json").read_text())["test"]["ndcg@5"] for name in ("slatk", "ease")]
    assert float(rows[2][1].split()[0]) == pytest.approx(means[0] - means[1], abs=1e-4)


def test_it_says_how_the_runs_were_made_and_which_settings_are_not_the_defaults(runs, several):
    tables = Texts(several).tables
    facts = {row[0]: row[1:] for row in tables["How each run was made"]}
    assert facts["loss"] == ["slatk", "softmax", "none (closed form)"]
    assert "state" not in facts  # the same in all
    assert "The same in all runs: K 5; seed 0; state finished" in several
    assert f"torch {version('torch')}; " in several  # of the package: torch.__version__ may name the platform too
    settings = {row[0]: row[1:] for row in tables["Settings that are not the defaults, or differ between the runs"]}
    assert settings["train.epochs"] == ["4 | default 200", "4 | default 200", "–"]
    assert settings["k"] == ["5 | default 20"] * 3
    assert "loss.tau" not in settings  # as every run without settings has it
    command = re.search(r"<code>(topshelf report .*?)</code>", several)[1]
    assert command.startswith(f"topshelf report {runs / 'slatk'} {runs / 'softmax'} {runs / 'ease'} -o ")


def test_it_asks_for_nothing_and_everything_from_the_data_is_escaped(several):
    found = Texts(several)
    assert not [one for one in found.addresses if not one.startswith(("#", "data:"))]
    assert "http://" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", several)
    assert "https://" not in several
    assert found.tags.count("script") == 1
    assert "img" not in found.tags
    assert "onerror=alert(1)&gt;" in several  # as a text
    assert "<img" not in several


def test_titles_of_a_file_and_reasons_are_shown_and_hits_are_of_the_test_part(runs, tmp_path, without_plots):
    items = pl.read_parquet(runs / "slatk" / "items.parquet")["id"]
    titles = pl.DataFrame({"item": items, "title": [f"Title <b>{at}</b>" for at in range(len(items))]})
    titles.write_csv(tmp_path / "titles.csv")
    write_report([runs / "slatk"], tmp_path / "report.html", titles=tmp_path / "titles.csv")
    html = (tmp_path / "report.html").read_text()
    lists = {title: rows for title, rows in Texts(html).tables.items() if title.startswith("The list of user")}
    assert len(lists) == 5
    split = load(runs / "slatk").dataset.split
    n_hits = 0
    for title, rows in lists.items():
        assert len(rows) == 1 + LISTED
        user = split.users.get(title.removeprefix("The list of user "))
        wanted = set(split.lists("test").select(torch.tensor([user])).indices.tolist())
        known = set(split.seen("valid").select(torch.tensor([user])).indices.tolist())
        learned = set(split.seen("train").select(torch.tensor([user])).indices.tolist())
        for row in rows[1:]:
            item, why = row[1].split(" | ")
            place = int(re.match(r"Title <b>(\d+)</b>", item)[1])
            assert (HIT in item) == (place in wanted)
            assert place not in known
            assert {int(n) for n in re.findall(r"<b>(\d+)</b>", why)} <= learned
            n_hits += HIT in item
    assert n_hits > 0
    assert f"--titles {tmp_path / 'titles.csv'}" in html


def test_own_items_of_a_person_are_without_those_to_be_found(runs):
    (run,) = open_runs([runs / "slatk"])
    lister = Lister.of(run, None)
    split = run.fitted.dataset.split
    for row in (0, 7, 40):
        assert sorted(lister.own(row)) == split.seen("train").select(torch.tensor([row])).indices.tolist()


def test_the_log_has_thresholds_and_the_page_draws_them(runs, several):
    log = [json.loads(line) for line in (runs / "slatk" / "log.jsonl").read_text().splitlines()]
    assert all("threshold" in line for line in log)
    assert "threshold" not in (runs / "softmax" / "log.jsonl").read_text()
    assert 'aria-label="validation NDCG@5 over epochs"' in several
    assert 'aria-label="training loss over epochs"' in several
    last = next(one for one in open_runs([runs / "slatk"])[0].log if one.epoch == 4)
    assert f"<title>slatk, epoch 4: {last.loss:.4f}</title>" in several


def test_a_run_that_is_not_finished_says_so_and_a_damaged_log_is_left_out(runs, tmp_path, without_plots):
    shutil.copytree(runs / "slatk", tmp_path / "half")
    (tmp_path / "half" / "metrics.json").unlink()
    (tmp_path / "half" / "log.jsonl").write_text("not JSON\n")
    with pytest.warns(TopshelfWarning, match="is not finished"):
        html = report_page([tmp_path / "half"]).html()
    assert "half is not finished: these are the numbers of its best model so far" in html
    assert "log.jsonl is damaged" in html
    assert "<td>not finished</td>" in html


def test_runs_that_were_refitted_on_everything_show_what_was_measured_before(runs, without_plots):
    refitted = run_of(runs, "refitted", train={"refit": "all"})
    html = report_page([refitted]).html()
    kept = json.loads((refitted / "metrics.json").read_text())["test"]
    assert "was refitted on everything" in html
    rows = {row[0]: row[1:] for row in Texts(html).tables["Metrics by the length of the list"]}
    assert rows["NDCG"][0].startswith(f"{kept['ndcg@5']:.4f}")
    assert "Who gains" not in html
    assert HIT not in html


def test_seeds_of_one_method_have_a_row_of_means(runs, without_plots):
    other = run_of(runs, "slatk-1", seed=1)
    html = report_page([runs / "slatk", other, runs / "ease"]).html()
    rows = Texts(html).tables["clicks.csv, protocol standard"]
    assert [row[:2] for row in rows[1:]] == [["mf, slatk", "2"], ["ease", "1"]]


def other_data(runs, folder):
    shutil.copytree(runs / "ease", folder)
    _rename_data(folder)


def other_task(runs, folder):
    rows = [(user, (user + t) % 6, t) for user in range(8) for t in range(5)]
    source = folder.with_suffix(".csv")
    pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row").write_csv(source)
    fit(assemble(task="sequences", data=str(source), model="markov", k=2), out=folder)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda runs, folder: folder.mkdir(), CheckpointError, "is not a run folder: it has no config.toml"),
        (lambda runs, folder: folder.symlink_to(runs / "slatk"), ConfigError, "given once, got .*slatk twice"),
        (other_data, ConfigError, "on the same data, got clicks.csv and others.csv; make a page for each"),
        (other_task, ConfigError, "of one task to be compared, got interactions, sequences"),
    ],
    ids=["no run", "twice", "other data", "other task"],
)
def test_what_does_not_belong_on_a_page_is_refused(runs, tmp_path, make, error, message):
    make(runs, tmp_path / "other")
    with pytest.raises(error, match=message):
        write_report([runs / "slatk", tmp_path / "other"], tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_no_run_and_a_folder_as_file_are_refused(runs, tmp_path):
    with pytest.raises(ConfigError, match="give at least one run folder"):
        write_report([], tmp_path / "r.html")
    with pytest.raises(ConfigError, match=r"--out must be a file such as report\.html, and .* is a folder"):
        write_report([runs / "slatk"], tmp_path)
    with pytest.raises(ConfigError, match=r"--out must be in a folder that is there, got .*; make .*absent first"):
        write_report([runs / "slatk"], tmp_path / "absent" / "r.html")


def _rename_data(folder):
    """Another name of the data in a run folder; the files' own sums are those of the change."""
    path = folder / "interactions.safetensors"
    checkpoint.save(path, {**checkpoint.load(path), "name": "others.csv"})
    identity = json.loads((folder / "run.json").read_text())
    del identity["checksum"]
    identity["sha256"][path.name] = files.digest(path)
    files.write_sealed(folder / "run.json", identity)


def test_the_command_prints_where_the_page_is_and_replaces_an_old_one(runs, tmp_path, without_plots):
    (tmp_path / "page.html").write_text("old")
    shown, said = run_topshelf("report", runs / "ease", "-o", tmp_path / "page.html")
    assert shown.replace("\n", "").endswith("page.html")
    assert f"reading {runs / 'ease'}"[:40] in said
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    _, errors = run_topshelf("report", tmp_path / "absent", "-o", tmp_path / "page.html", code=2)
    assert "does not exist" in errors


def test_without_matplotlib_the_page_has_the_numbers_and_says_how_to_get_plots(runs, without_plots):
    html = report_page([runs / "slatk", runs / "ease"]).html()
    assert "<svg" not in html
    assert "pip install &#x27;topshelf[plot]&#x27;" in html
    found = Texts(html).tables
    assert "Metrics at K = 5; the best of each column is bold" in found
    assert any(title.startswith("80 sampled users") for title in found)
    assert "ease is left out: ease has no vector per user" in html
    assert HOSTILE not in html
