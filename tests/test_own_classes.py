"""A loss, a model, negatives and an estimator of another package: examples/own_package, from training to lists."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

import topshelf
from command_line import run_topshelf
from runs import StopAfter, assert_same, state_of
from topshelf import registry
from topshelf.config import assemble, overrides
from topshelf.data import generate
from topshelf.errors import CheckpointError
from topshelf.training import StoppedEarly, fit, resume
from topshelf.training import phases as phases_module

PACKAGE = Path(__file__).parents[1] / "examples" / "own_package"
MODEL, LOSS = "my_ranking.models:BiasedMF", "my_ranking.losses:SquaredHinge"
NEGATIVES, ESTIMATOR = "my_ranking.negatives:ByPopularity", "my_ranking.thresholds:Smoothed"
SETTINGS = [
    "model.dim=4",
    f"negatives.kind={NEGATIVES}",
    "negatives.n=20",
    "negatives.power=0.5",
    f"threshold.estimator={ESTIMATOR}",
    "threshold.every=1",
    "train.epochs=4",
    "train.batch_size=16",
    "train.checkpoint_seconds=0",
]
SHORT = [word for setting in SETTINGS for word in ("--set", setting)]


def forget():
    """As in a fresh process: nothing of the package is imported, nothing is allowed."""
    registry._ALLOWED.clear()
    for name in [name for name in sys.modules if name.split(".")[0] in ("my_ranking", "their_code")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def is_imported(package="my_ranking"):
    return any(name.split(".")[0] == package for name in sys.modules)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with data and runs: all four classes from the command line; SL@K with the estimator."""
    folder = tmp_path_factory.mktemp("own")
    generate(40, 30, interactions_per_user=6, seed=1).to_frame().write_csv(folder / "clicks.csv")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PACKAGE / "src")
        patch.chdir(folder)
        forget()
        train("runs/mine")
        train("runs/thresholds", loss="slatk")
        forget()
    return folder


@pytest.fixture(autouse=True)
def place(trained, monkeypatch):
    """Among the runs; the package can be imported, and is not yet."""
    monkeypatch.syspath_prepend(PACKAGE / "src")
    monkeypatch.chdir(trained)
    forget()
    yield
    forget()


def train(out, *more, model=MODEL, loss=LOSS, code=0):
    named = ["--data", "clicks.csv", "--k", "5", "--model", model, "--loss", loss]
    return run_topshelf("train", *named, *SHORT, *more, "--out", out, "--quiet", code=code)


def config_of(loss=LOSS):
    return assemble(data="clicks.csv", k=5, model=MODEL, loss=loss, more=overrides(SETTINGS))


def same_weights(out, other="runs/mine"):
    one, two = state_of(out)["state"]["model"], state_of(other)["state"]["model"]
    assert_same(one, two)


# Training


def test_the_command_line_trains_with_all_four_and_keeps_their_names():
    config = Path("runs/mine/config.toml").read_text()
    for name in (MODEL, LOSS, NEGATIVES, ESTIMATOR):
        assert f'"{name}"' in config
    assert "power = 0.5" in config
    assert "margin = 0.5" in config
    assert 'loss = "slatk"' not in Path("runs/thresholds/metrics.json").read_text()


def test_what_is_printed_says_how_to_open_the_run_again(tmp_path):
    output, _ = train(tmp_path / "run")
    assert f"topshelf recommend {tmp_path / 'run'} --user 0 --allow my_ranking" in " ".join(output.split())


def test_a_toml_file_trains_the_same(tmp_path):
    shutil.copy("runs/mine/config.toml", tmp_path / "mine.toml")
    run_topshelf("train", tmp_path / "mine.toml", "--out", tmp_path / "run", "--quiet")
    same_weights(tmp_path / "run")


def test_python_trains_the_same_by_name_class_and_instance(tmp_path):
    from my_ranking.losses import SquaredHinge
    from my_ranking.models import BiasedMF
    from my_ranking.negatives import ByPopularity
    from my_ranking.thresholds import Smoothed

    settings = {"epochs": 4, "batch_size": 16, "checkpoint_seconds": 0}
    ways = {
        "name": ({"name": MODEL, "dim": 4}, LOSS, {"kind": NEGATIVES, "n": 20, "power": 0.5}, {"estimator": ESTIMATOR}),
        "instance": (BiasedMF(1, 1, dim=4), SquaredHinge(), ByPopularity(20, power=0.5), Smoothed()),
        "class": ({"name": MODEL, "dim": 4}, SquaredHinge, ByPopularity(20, power=0.5), Smoothed),
    }
    for way, (model, loss, negatives, threshold) in ways.items():
        made = topshelf.Recommender(
            k=5, model=model, loss=loss, negatives=negatives, threshold=threshold, train=settings
        )
        made.fit("clicks.csv", out=tmp_path / way)
        same_weights(tmp_path / way)


def test_the_estimator_moves_the_thresholds_of_a_loss_that_has_them():
    state = state_of("runs/thresholds")["state"]["checkpoint"]["trainer"]["loss"]
    assert (state["threshold"] != 0).any()


@pytest.mark.parametrize(("run", "loss"), [("runs/mine", LOSS), ("runs/thresholds", "slatk")])
def test_a_run_that_was_stopped_is_resumed_bit_for_bit(tmp_path, run, loss):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phases_module, "stop_on_signals", lambda: nullcontext(StopAfter(5)))
        with pytest.raises(StoppedEarly, match=r"--resume .* --allow my_ranking"):
            fit(config_of(loss), out=tmp_path / "run")
    forget()
    with pytest.raises(CheckpointError, match=r"allow=\['my_ranking'\]"):
        resume(tmp_path / "run")
    assert not is_imported()
    run_topshelf("train", "--resume", tmp_path / "run", "--allow", "my_ranking", "--quiet")
    assert_same(state_of(run), state_of(tmp_path / "run"))


# Opening a run again


@pytest.fixture(scope="module")
def study(trained):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PACKAGE / "src")
        patch.chdir(trained)
        run_topshelf("tune", *TUNED, "--trials", "1", "--out", "runs/study", "--quiet")
    return "runs/study"


TUNED = ["--data", "clicks.csv", "--k", "5", "--model", MODEL, "--loss", LOSS, *SHORT, "--range", "loss.margin=0.2,0.9"]
OPENED = {
    "evaluate": ["evaluate", "runs/mine"],
    "against": ["evaluate", "runs/thresholds", "--against", "runs/mine"],
    "recommend": ["recommend", "runs/mine", "--user", "1"],
    "blend": ["blend", "runs/mine", "runs/thresholds", "--out", "OUT", "--quiet"],
    "diagnose": ["diagnose", "runs/mine", "--losses", "softmax", "--epochs", "1", "--users", "20", "--out", "OUT"],
    "resume": ["train", "--resume", "runs/mine", "--quiet"],
    "tune": ["tune", "--resume", "runs/study", "--trials", "2", "--quiet"],
}


@pytest.mark.parametrize("command", OPENED)
def test_a_run_is_opened_only_where_its_package_is_allowed(command, study, tmp_path):
    arguments = [tmp_path / "out" if word == "OUT" else word for word in OPENED[command]]
    forget()
    _, errors = run_topshelf(*arguments, code=2)
    message = " ".join(errors.split())
    assert "a class of another package, which is imported only if you allow it" in message
    assert "--allow my_ranking" in message
    assert not is_imported()
    assert not (tmp_path / "out").exists()
    run_topshelf(*arguments, "--allow", "my_ranking")


def test_a_blend_names_the_classes_of_its_parts(tmp_path):
    arguments = ["blend", "runs/mine", "runs/thresholds", "--weights", "1,1", "--out", tmp_path / "blend", "--quiet"]
    run_topshelf(*arguments, "--allow", "my_ranking")
    forget()
    _, errors = run_topshelf("evaluate", tmp_path / "blend", code=2)
    assert "model.parts.0.name = 'my_ranking.models:BiasedMF'" in " ".join(errors.split())
    assert not is_imported()
    run_topshelf("evaluate", tmp_path / "blend", "--allow", "my_ranking")


def test_python_opens_a_run_whose_modules_are_imported_or_allowed():
    with pytest.raises(CheckpointError, match="my_ranking"):
        topshelf.load("runs/mine")
    with pytest.raises(CheckpointError, match="my_ranking"):
        topshelf.Recommender.load("runs/mine")
    lists = topshelf.Recommender.load("runs/mine", allow=["my_ranking"]).recommend(k=3)
    forget()
    for module in ("models", "losses", "negatives", "thresholds"):
        importlib.import_module(f"my_ranking.{module}")
    assert topshelf.Recommender.load("runs/mine").recommend(k=3).equals(lists)
    assert topshelf.load("runs/mine").evaluate().mean()


FRESH = """
import sys
from topshelf.cli import main
for more in ([], ["--allow", "my_ranking"]):
    sys.argv = ["topshelf", "evaluate", "runs/mine", "--cutoffs", "5", *more]
    try:
        main()
    except SystemExit as stop:
        print(stop.code or 0, "my_ranking" in sys.modules, file=sys.stderr)
"""


def fresh(code, *arguments):
    """What a new process with the package on its path says."""
    paths = [Path(topshelf.__file__).parents[1], PACKAGE / "src"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-P", "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_a_fresh_process_imports_what_is_allowed_and_nothing_else():
    lines = fresh(FRESH).stderr.splitlines()
    assert "2 False" in lines
    assert lines[-1] == "0 True"


# What is missing


def copied(tmp_path, monkeypatch, module, old, new):
    """The package with one edit, found before the one of the examples."""
    shutil.copytree(PACKAGE / "src", tmp_path / "src")
    path = tmp_path / "src" / "my_ranking" / f"{module}.py"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    monkeypatch.syspath_prepend(tmp_path / "src")
    forget()


def refused(*arguments):
    return " ".join(run_topshelf(*arguments, code=2)[1].split())


def test_a_package_that_cannot_be_imported_is_named(monkeypatch):
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(PACKAGE / "src")])
    message = refused("evaluate", "runs/mine", "--allow", "my_ranking")
    assert f"model.name is '{MODEL}', but my_ranking.models cannot be imported: ModuleNotFoundError" in message
    assert "Install it, or put its folder on PYTHONPATH" in message


@pytest.mark.parametrize(
    ("module", "old", "new", "message"),
    [
        ("models", "class BiasedMF", "class Renamed", f"got nothing of that name for '{MODEL}'"),
        ("losses", "class SquaredHinge", "class Renamed", f"got nothing of that name for '{LOSS}'"),
        ("models", "class BiasedMF(Model)", "class BiasedMF", "must name a subclass of topshelf's Model, got"),
        ("negatives", "class ByPopularity(Negatives)", "class ByPopularity", "a subclass of topshelf's Negatives"),
        ("thresholds", "class Smoothed(Estimator)", "class Smoothed", "a subclass of topshelf's Estimator"),
        ("models", "import torch\n", "import a_missing_one\n", "my_ranking.models cannot be imported: ModuleNotFound"),
    ],
    ids=["no model", "no loss", "not a model", "not negatives", "not an estimator", "no import"],
)
def test_a_package_that_has_changed_is_told_what_is_missing(tmp_path, monkeypatch, module, old, new, message):
    copied(tmp_path, monkeypatch, module, old, new)
    if module == "models":  # the others are only needed to train on
        assert message in refused("evaluate", "runs/mine", "--allow", "my_ranking")
        forget()
    assert message in " ".join(train(tmp_path / "run", code=2)[1].split())
    assert not (tmp_path / "run").exists()


def test_a_setting_that_is_gone_is_named(tmp_path, monkeypatch):
    copied(tmp_path, monkeypatch, "models", "spread", "width")
    message = "model.spread is not a setting; accepted here: dim, width"
    assert message in refused("evaluate", "runs/mine", "--allow", "my_ranking")


def test_diagnose_compares_with_a_loss_of_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # no plots
    arguments = ["--losses", LOSS, "--epochs", "1", "--users", "20", "--out", tmp_path / "out", "--json"]
    output, _ = run_topshelf("diagnose", "--data", "clicks.csv", "--k", "5", *arguments)
    assert "SquaredHinge" in output
    _, errors = run_topshelf("diagnose", "--data", "clicks.csv", "--losses", MODEL, "--out", tmp_path / "no", code=2)
    assert "--losses must name a subclass of topshelf's Loss" in " ".join(errors.split())


# Nothing is imported that was not named

TELLTALE = """
from pathlib import Path
from topshelf.models import MF

Path("was-imported").write_text("")

class Mine(MF):
    pass
"""


@pytest.fixture
def strange(tmp_path, monkeypatch):
    """A folder with a module, and a run that names its class without the caller knowing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "their_code.py").write_text(TELLTALE)
    generate(30, 20, interactions_per_user=5, seed=1).to_frame().write_csv("clicks.csv")
    run_topshelf("train", "--data", "clicks.csv", "--k", "5", "--set", "train.epochs=1", "--out", "run", "--quiet")
    config = Path("run/config.toml")
    config.write_text(config.read_text().replace('name = "mf"', 'name = "their_code:Mine"'))
    (tmp_path / "run" / "their_code.py").write_text(TELLTALE)
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "run"],
        ["recommend", "run", "--user", "1"],
        ["evaluate", "run", "--allow", "my_ranking"],
        ["blend", "run", "run", "--out", "blend"],
        ["diagnose", "run", "--out", "out"],
        ["train", "--resume", "run"],
    ],
    ids=lambda arguments: " ".join(arguments[:3]),
)
def test_no_command_imports_what_a_run_folder_names(strange, arguments):
    assert "their_code" in refused(*arguments)
    assert not is_imported("their_code")
    assert not Path("was-imported").exists()


def test_a_run_folder_is_never_searched_for_modules(strange):
    Path("their_code.py").unlink()
    assert "their_code cannot be imported" in refused("evaluate", "run", "--allow", "their_code")
    assert not Path("was-imported").exists()


def test_a_class_in_the_current_folder_is_found(strange):
    assert not {"", ".", str(strange)} & set(sys.path)
    named = ["--data", "clicks.csv", "--k", "5", "--set", "train.epochs=1", "--model", "their_code:Mine"]
    run_topshelf("train", *named, "--out", "mine", "--quiet")
    assert Path("was-imported").exists()
    sys.path.remove(str(strange))
    forget()
    run_topshelf("recommend", "mine", "--user", "1", "--allow", "their_code")
    assert sys.path[-1] == str(strange), "after everything that is installed"


def test_diagnose_finds_the_classes_of_a_toml_file_in_the_current_folder(strange, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # no plots
    short = 'k = 5\ndata = { source = "clicks.csv" }\nmodel = { name = "their_code:Mine" }\n'
    Path("mine.toml").write_text(short)
    run_topshelf("diagnose", "mine.toml", "--losses", "softmax", "--epochs", "1", "--users", "10", "--out", "out")
    assert Path("was-imported").exists()


# Its pages and tests


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", (PACKAGE / "README.md").read_text(), flags=re.DOTALL | re.MULTILINE)


def test_what_the_readme_of_the_package_shows_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("topshelf ")]
    assert [command.split()[1] for command in commands] == ["train", "evaluate", "recommend"]
    for command in commands:
        forget()
        run_topshelf(*shlex.split(command)[1:])
    (python,) = blocks("python")
    exec(compile(python, "README.md", "exec"), {})
    (toml,) = blocks("toml")
    Path("mine.toml").write_text(toml)
    run_topshelf("train", "mine.toml", "--out", "runs/from-toml", "--quiet")
    for run in ("mine", "from-python", "from-toml"):
        assert f'name = "{MODEL}"' in Path(f"runs/{run}/config.toml").read_text()


@pytest.mark.slow
def test_the_package_passes_the_suites(tmp_path):
    code = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    options = ["-q", "-W", "error", "-p", "no:cacheprovider", "--rootdir", tmp_path, "-c", os.devnull]
    done = fresh(code, *options, PACKAGE / "tests")
    assert done.returncode == 0, done.stdout + done.stderr
