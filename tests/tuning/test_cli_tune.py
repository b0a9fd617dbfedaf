"""topshelf tune as a person types it, and the page it leaves."""

from __future__ import annotations

import json
import shlex
import zipfile
from importlib import import_module

import pytest

from command_line import run_topshelf
from topshelf.data import generate, make_split
from topshelf.data.given import write_split
from topshelf.tuning import resume

SHORT = ("--k", "5", "--set", "train.epochs=4", "--set", "train.validate_every=1", "--set", "model.dim=8")


def topshelf(*arguments, code=0):
    """Run the command line in this process; what it printed, errors and progress included."""
    output, errors = run_topshelf(*arguments, code=code)
    return " ".join((output + errors).split())


@pytest.fixture(scope="module")
def csv(tmp_path_factory):
    path = tmp_path_factory.mktemp("tune") / "clicks.csv"
    generate(60, 40, interactions_per_user=8, seed=1).to_frame().write_csv(path)
    return path


def test_a_csv_becomes_a_study_whose_best_is_trained_by_the_command_it_prints(csv, tmp_path):
    out = tmp_path / "study"
    shown = topshelf("tune", "--data", csv, *SHORT, "--trials", "5", "--range", "loss.tau=0.1,0.2,0.3", "--out", out)
    assert "trial 0 (the defaults); complete; ndcg@5 0." in shown
    assert "; best 0." in shown
    assert "Chosen by ndcg@5 on the validation part, users with nothing to find left out" in " ".join(shown.split())
    assert "budget: 5 trials of at most 4 epochs, the first with the defaults; spent: " in shown
    assert "0.1, 0.2, 0.3" in shown
    line = f"train {out}/best.toml --out {out}/best"
    assert f"train the best: topshelf {line} " in shown
    assert "kept in" in topshelf(*shlex.split(line), "--quiet")
    score = json.loads((out / "best" / "metrics.json").read_text())["valid"]["ndcg@5"]
    assert score == pytest.approx(resume(out).best.score, abs=1e-12)


def test_columns_of_any_name_are_named_as_in_train(csv, tmp_path):
    odd = tmp_path / "odd.csv"
    header, _, rows = csv.read_text().partition("\n")
    assert header.split(",")[:2] == ["user", "item"]
    odd.write_text(header.replace("user", "visitor").replace("item", "thing") + "\n" + rows)
    command = ("tune", "--data", odd, *SHORT, "--trials", "1", "--out", tmp_path / "study")
    assert "--item-column" in topshelf(*command, code=2)
    assert "1 complete" in topshelf(*command, "--user-column", "visitor", "--item-column", "thing")
    refused = topshelf("tune", "--resume", tmp_path / "study", "--user-column", "visitor", code=2)
    assert "--resume continues a study as it was defined" in refused


def given(kind, folder):
    """A ready-made split under a folder, and its test file; in a zip, None: it holds no test file at all."""
    split = make_split(generate(60, 40, interactions_per_user=8, seed=1))
    source = folder / "given"
    if kind == "parquet":
        write_split(split, source, {})
        return source, source / "test.parquet"
    source.mkdir()
    for name in ("train", "test"):
        part = getattr(split, name)
        rows = part.to_frame().select("user", "item")
        if kind == "txt":
            lines = rows.group_by("user", maintain_order=True).agg("item").iter_rows()
            text = "".join(f"{user} {' '.join(map(str, items))}\n" for user, items in lines)
            (source / f"{name}.txt").write_text(text)
        else:
            rows.write_csv(source / f"{name}.tsv", separator="\t")
    if kind != "zip":
        return source, source / f"test.{kind}"
    with zipfile.ZipFile(folder / "given.zip", "w") as archive:
        archive.write(source / "train.tsv", "train.tsv")
    return folder / "given.zip", None


@pytest.mark.parametrize(
    "kind", ["tsv", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("txt", "parquet", "zip"))]
)
def test_a_study_of_a_ready_made_split_begins_and_ends_with_the_test_file_absent(kind, tmp_path):
    source, test = given(kind, tmp_path)
    options = (*SHORT, "--trials", "2", "--quiet")
    if test is not None:
        topshelf("tune", "--data", source, *options, "--out", tmp_path / "there")
        test.unlink()
    assert "budget: 2 trials" in topshelf("tune", "--data", source, *options, "--out", tmp_path / "absent")
    assert all(row.score is not None for row in resume(tmp_path / "absent").rows)
    assert "has no" in topshelf("train", "--data", source, "--quiet", "--out", tmp_path / "run", code=2)
    if test is not None:  # and nothing came of its having been there
        scores = [[(row.score, row.settings) for row in resume(tmp_path / name).rows] for name in ("there", "absent")]
        assert scores[0] == scores[1]


def test_what_is_set_is_not_searched_and_quiet_is_quiet(csv, tmp_path):
    arguments = ("--data", csv, *SHORT, "--set", "loss.tau=0.15", "--trials", "2", "--quiet", "--out", tmp_path / "s")
    shown = topshelf("tune", *arguments)
    assert "loss.tau_weight" in shown
    assert "loss.tau │" not in shown
    assert "trial 0" not in shown.replace("Trial 0", "")
    assert "tau = 0.15" in (tmp_path / "s" / "best.toml").read_text()
    assert "3 trials" in topshelf("tune", "--resume", tmp_path / "s", "--trials", "3")


def test_a_closed_form_model_is_searched_by_a_grid(csv, tmp_path):
    out = tmp_path / "ease"
    arguments = ("--model", "ease", "--sampler", "grid", "--range", "model.l2=10,100", "--out", out)
    shown = topshelf("tune", "--data", csv, "--k", "5", *arguments)
    assert "fitted in closed form" in shown
    assert "(sampler grid)" in shown
    assert 'name = "ease"' in (out / "best.toml").read_text()


@pytest.mark.slow
def test_the_page_has_every_part_and_needs_no_matplotlib(csv, tmp_path, plots):
    out = tmp_path / "study"
    topshelf("tune", "--data", csv, *SHORT, "--trials", "18", "--quiet", "--out", out)
    page = (out / "report.html").read_text()
    headings = ("The best", "History", "Validation by epoch", "Importances", "Parallel coordinates", "Trials")
    places = [page.index(f"<h2>{heading}</h2>") for heading in headings]
    assert places == sorted(places)
    assert page.count("<svg") == 4
    assert "Budget: 18 trials of at most 4 epochs" in page
    assert page.count("<tr") == 1 + len(json.loads((out / "study.json").read_text())["ranges"]) + 1 + 18
    assert f"topshelf train {out}/best.toml" in page
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("topshelf.charts.can_plot", lambda: False)
        topshelf("tune", "--resume", out)
    plain = (out / "report.html").read_text()
    assert "matplotlib is not installed" in plain
    assert "<svg" not in plain


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("tune", "give --data PATH|NAME or a TOML file; see topshelf tune --help"),
        ("tune --data nowhere.csv --out {new}", "'nowhere.csv' is neither a file nor a named dataset"),
        ("tune --data {csv} --model vae --out {new}", "model.name must be one of mf"),
        ("tune --data {csv} --model blend --out {new}", "topshelf blend RUN RUN --out FOLDER"),
        ("tune --data {csv} --loss hinge --out {new}", "loss.name must be one of bpr"),
        ("tune --data {csv} --model ease --loss bpr --out {new}", "--loss does not go with --model ease"),
        ("tune --data {csv} --range loss.t=1,2 --out {new}", "loss.t cannot be searched here; accepted: model."),
        ("tune --data {csv} --range loss.tau --out {new}", "--range takes name=value,value,... or name=low:high[:log]"),
        ("tune --data {csv} --range loss.tau= --out {new}", "range loss.tau=: it is empty"),
        ("tune --data {csv} --sampler random --out {new}", "sampler must be one of tpe, grid, got 'random'"),
        ("tune --data {csv} --trials 0 --out {new}", "trials must be >= 1, got 0"),
        ("tune --data {csv} --k 41 --out {new}", "k must be <= 40 (clicks.csv has 40 items), got 41"),
        ("tune --data {csv} --storage mysql --out {new}", "--storage must be the url of a database"),
        ("tune --resume {new}", "is not a study: it has no study.json"),
        ("tune --resume {new} --k 3", "--resume continues a study as it was defined"),
    ],
)
def test_a_wrong_input_is_one_message_and_exit_code_2(csv, tmp_path, arguments, message):
    shown = topshelf(*arguments.format(csv=csv, new=tmp_path / "new").split(), code=2)
    assert message in shown
    assert not (tmp_path / "new").exists()


def test_help_has_examples():
    assert "topshelf tune --resume runs/tune-clicks --trials 60" in topshelf("tune", "--help")


def test_without_optuna_the_message_says_how_to_get_it(csv, tmp_path, monkeypatch):
    monkeypatch.setattr(import_module("topshelf.cli.tune"), "find_spec", lambda name: None)
    shown = topshelf("tune", "--data", csv, "--out", tmp_path / "new", code=2)
    assert "topshelf tune needs Optuna: pip install 'topshelf[tune]'" in shown
