"""A diagnosis from end to end on a file of one's own, and the command line around it."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from command_line import run_topshelf
from topshelf.config import assemble
from topshelf.data.synthetic import generate
from topshelf.diagnose import diagnose, plan, tables
from topshelf.diagnose.files import page
from topshelf.diagnose.plots import draw
from topshelf.errors import ConfigError
from topshelf.losses import LOSSES
from topshelf.training.run import fit

PLOTS = (
    "gradient-concentration", "gradient-sizes", "thresholds", "threshold-errors", "scores", "weights", "hits", "bound",
    "lambda-weights", "time",
)  # fmt: skip
HEADINGS = (
    "Advice", "Gradient concentration", "Thresholds: exact and estimated", "Scores", "Weights", "Hits and the bound",
    "Lambda weights", "Time of a step",
)  # fmt: skip
SHORT = ("--epochs", "2", "--users", "30")


def topshelf(*arguments, code=0):
    output, errors = run_topshelf(*arguments, code=code, columns=200)
    return output if code == 0 else " ".join(errors.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diagnose")
    frame = generate(60, 60, interactions_per_user=8, seed=1).to_frame()
    frame.write_csv(folder / "clicks.csv")
    config = assemble(data=str(folder / "clicks.csv"), k=5, more={"train": {"epochs": 2}})
    fit(config, out=folder / "run")
    fit(assemble(data=str(folder / "clicks.csv"), loss="bpr", k=5, more={"train": {"epochs": 1}}), out=folder / "bpr")
    fit(assemble(data=str(folder / "clicks.csv"), model="ease", k=5), out=folder / "ease")
    (folder / "softer.toml").write_text('[loss]\nname = "slatk"\ntau = 0.5\n')
    return folder


def test_a_run_on_a_csv_becomes_a_page_plots_and_numbers(folder):
    out = folder / "seen"
    shown = topshelf("diagnose", folder / "run", "--losses", "softmax,lambdaloss_at_k,song_at_k", *SHORT, "--out", out)
    for name in PLOTS:
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (out / f"{name}.svg").read_text()
    html = (out / "diagnose.html").read_text()
    assert html.count("<svg") == len(PLOTS)
    for heading in HEADINGS:
        assert f"<h2>{heading}</h2>" in html
        assert heading in shown
    found = json.loads((out / "diagnose.json").read_text())
    labels = ["slatk", "slatk, as kept", "softmax", "lambdaloss_at_k", "song_at_k"]
    assert [one["label"] for one in found["gradients"]] == labels
    assert all(0.04 < one["by_positive"]["top"]["5%"] < 1 for one in found["gradients"])
    assert [point["epoch"] for point in found["bounds"]["softmax"]] == [0, 1, 2]
    assert found["failed"] == {}
    assert all(timing["seconds"] > 0 for timing in found["timings"])


def test_the_same_seed_sees_the_same(folder):
    first, again = (diagnose(folder / "run", losses=["softmax"], epochs=1, users=20) for _ in range(2))
    other = diagnose(folder / "run", losses=["softmax"], epochs=1, users=20, seed=3)
    timed = ("timings",)
    one, two, three = ({k: v for k, v in x.to_json().items() if k not in timed} for x in (first, again, other))
    assert one == two
    assert one["gradients"] != three["gradients"]


def test_a_kept_model_is_looked_at_as_it_was_kept_and_a_config_as_it_is_trained_here(folder):
    config = assemble(data=str(folder / "clicks.csv"), k=5)
    kept, fresh = (diagnose(x, losses=[], epochs=1, users=40) for x in (folder / "run", config))
    assert kept.state == "the kept model of the run"
    assert fresh.state == "after 1 epochs"
    assert not np.allclose(kept.scores.threshold, fresh.scores.threshold)
    assert fresh.mean_thresholds["slatk"] == pytest.approx(float(fresh.scores.threshold.mean()))
    assert np.allclose(fresh.held.estimate, 0.0)  # thresholds are refreshed in epoch 5 for the first time


def test_a_loss_without_weights_on_dot_products_has_the_rest(folder):
    found = diagnose(folder / "bpr", losses=[], epochs=1, users=30)
    assert found.weights is None
    assert found.held is None
    assert not found.is_cosine
    assert set(draw(found)) == set(PLOTS) - {"weights"}
    assert "bpr has no sigmoid weights" in page(found, {}).html()


def test_a_loss_may_come_with_a_file_of_its_own_settings(folder):
    planned = plan(folder / "run", losses=[str(folder / "softer.toml")], epochs=1)
    assert [label for label, _ in planned.entries] == ["slatk", "softer"]
    assert planned.entries[1][1].loss.settings["tau"] == 0.5
    assert planned.entries[1][1].data == planned.config.data
    assert planned.entries[0][1].train.patience == 0


def test_a_comparison_that_cannot_be_trained_is_left_out_and_said(folder, tmp_path):
    (tmp_path / "wild.toml").write_text(
        '[loss]\nname = "bpr"\n[train]\nlearning_rate = 1e38\n[negatives]\nkind = "shared"\n'
    )
    found = diagnose(folder / "run", losses=[str(tmp_path / "wild.toml")], epochs=3, users=20)
    assert [one.label for one in found.gradients] == ["slatk", "slatk, as kept"]
    assert "learning_rate" in found.failed["wild"]
    assert any("wild is left out" in note for note in tables.sections(found)[0].notes)


def test_plots_have_room_for_every_loss(folder):
    found = diagnose(folder / "run", losses=[], epochs=1, users=10)
    many = replace(
        found,
        gradients=[replace(found.gradients[0], label=name) for name in LOSSES],
        bounds=dict.fromkeys(LOSSES, found.bounds["slatk"]),
        timings=[replace(found.timings[0], label=name) for name in LOSSES],
    )
    figures = draw(many)
    for name in ("gradient-concentration", "gradient-sizes", "bound", "time"):
        drawn = io.StringIO()
        figures[name].savefig(drawn, format="svg")  # a layout that collapses is a warning, and so an error
        assert all(loss in drawn.getvalue() for loss in LOSSES)


def test_json_is_printed_alone(folder, monkeypatch):
    monkeypatch.setattr("topshelf.charts.can_plot", lambda: False)  # drawing takes seconds
    shown = topshelf(
        "diagnose", "--data", folder / "clicks.csv", "--k", "5", *SHORT, "--json", "--losses", "", "--out", folder / "j"
    )
    assert json.loads(shown)["k"] == 5


def test_without_matplotlib_there_are_tables_and_a_note(folder, tmp_path, monkeypatch):
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    shown = topshelf("diagnose", folder / "run", "--losses", "", *SHORT, "--out", tmp_path / "bare")
    assert "pip install 'topshelf[plot]'" in shown
    assert {path.name for path in (tmp_path / "bare").iterdir()} == {"diagnose.html", "diagnose.json"}
    assert "matplotlib is not installed" in (tmp_path / "bare" / "diagnose.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "give a run folder, a TOML file, or --data PATH|NAME"),
        ("{run}", "give --out FOLDER"),
        ("nowhere --out {new}", "nowhere is neither a run folder (topshelf train --out makes one) nor a TOML file"),
        ("{folder} --out {new}", "is not a run folder: it has no config.toml"),
        ("nowhere.toml --out {new}", "config file nowhere.toml does not exist"),
        ("{run} --losses softmax,hinge --out {new}", "--losses must be one of bpr,"),
        ("{run} --losses {folder}/softer.toml,{folder}/x/../softer.toml --out {new}", "names softer twice"),
        ("{folder}/ease --out {new}", "ease is fitted in closed form: it has no loss to diagnose"),
        ("{run} --k 5 --out {new}", "leave --data, --model, --loss, --k and --set out"),
        ("{run} --users 0 --out {new}", "users must be >= 1, got 0"),
        ("{run} --epochs 0 --out {new}", "epochs must be >= 1, got 0"),
        ("--data {folder}/clicks.csv --k 61 --out {new}", "k of slatk must be <= 60"),
        ("{run} --epochs 1 --out {folder}/clicks.csv", "--out must be a new or empty folder, or an earlier diagnosis"),
        ("{run} --epochs 1 --out {run}", "--out must be a new or empty folder, or an earlier diagnosis"),
    ],
)
def test_a_wrong_input_is_one_message_and_leaves_nothing(folder, tmp_path, arguments, message):
    (folder / "x").mkdir(exist_ok=True)
    text = arguments.format(run=folder / "run", folder=folder, new=tmp_path / "new")
    assert message in topshelf("diagnose", *text.split(), code=2)
    assert not (tmp_path / "new").exists()


def test_help_has_an_example():
    assert "topshelf diagnose runs/clicks" in topshelf("diagnose", "--help")


def test_a_diagnosis_needs_somebody_with_something_to_rank(folder):
    with pytest.raises(ConfigError, match="users must be >= 1"):
        diagnose(folder / "run", users=0)
