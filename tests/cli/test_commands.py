"""The commands as a person types them, output and exit code read."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata

import polars as pl
import pytest

from command_line import run_topshelf
from topshelf.config import CONFIGS
from topshelf.data import generate
from topshelf.losses import LISTWISE
from topshelf.models import MODELS
from topshelf.recommender import Recommender
from topshelf.training.build import REGISTRIES
from topshelf.training.folder import RunFolder

SHORT = ["--k", "5", "--quiet", "--set", "train.epochs=4", "--set", "train.validate_every=2"]


def topshelf(*arguments, code=0):
    """Run the command line in this process; its output, or what it said about an error."""
    output, errors = run_topshelf(*arguments, code=code)
    return output if code == 0 else errors


def of_task(task):
    return () if task == "interactions" else ("--task", task)


@pytest.mark.parametrize("task", REGISTRIES)
def test_losses_lists_every_name_of_a_task_with_its_summary_and_ranges(task):
    shown = topshelf("losses", *of_task(task))
    rows = json.loads(topshelf("losses", "--task", task, "--json"))
    assert [row["name"] for row in rows] == list(REGISTRIES[task].losses)
    words = " ".join(shown.replace("│", " ").split())
    for row in rows:
        assert f"{row['name']} {row['summary']} Use when: {row['use_when'].partition('. ')[0]}" in words
        assert task in row["tasks"]
    listed = {row["name"]: row for row in rows}
    assert listed["slatk"]["form"] == ("graded" if task == "ranking" else "ragged")
    assert listed["slatk"]["settings"]["tau"] == (1.0 if task == "ranking" else 0.2)
    assert "loss.tau_weight: 0.5, 0.75, 1, " in words
    assert f"topshelf train {' '.join([*of_task(task), '--loss'])} NAME" in words


@pytest.mark.parametrize("task", REGISTRIES)
def test_models_lists_every_name_of_a_task_with_when_to_use_it_its_cost_and_its_ranges(task):
    shown = topshelf("models", *of_task(task))
    rows = json.loads(topshelf("models", "--task", task, "--json"))
    assert [row["name"] for row in rows] == list(REGISTRIES[task].models)
    words = " ".join(shown.replace("│", " ").split())
    for row in rows:
        assert f"{row['name']} {row['summary']}" in words
        assert f"Use when: {row['use_when'].partition('. ')[0]}" in words
        assert f"Cost: {row['cost'].partition('. ')[0]}" in words
        assert row["form"] == ("closed form" if REGISTRIES[task].models[row["name"]].is_closed_form else "trained")
    assert words.count("New users: from their items.") == sum(row.get("new_users", False) for row in rows)
    assert f"topshelf train {' '.join([*of_task(task), '--model'])} NAME --loss LOSS" in words


def test_without_a_task_the_other_tasks_and_their_names_are_named():
    models, losses = topshelf("models"), topshelf("losses")
    for task in ("ranking", "sequences", "links"):
        assert re.search(rf"--task {task} \(.*\): {', '.join(REGISTRIES[task].models)}\n", models)
    assert f"): {', '.join(LISTWISE)}\n" in losses
    assert "--task links (Links: pairs of nodes of a graph): the same losses\n" in losses
    assert "--task ranking (" not in topshelf("models", "--task", "links")
    rows = json.loads(topshelf("models", "--json"))
    assert {row["name"] for row in rows} == {name for one in REGISTRIES.values() for name in one.models}
    assert [row["tasks"] for row in rows if row["name"] == "mlp"] == [["ranking"], ["links"]]
    assert next(row["tasks"] for row in rows if row["name"] == "mf") == ["interactions", "sequences"]


def test_a_name_of_two_classes_is_shown_with_the_task_of_each():
    words = " ".join(topshelf("models", "mlp").split())
    assert "mlp is the name of 2: for --task ranking; for --task links." in words
    assert "topshelf train --task links --model mlp" in words
    assert "topshelf train --task ranking --model mlp" in words
    assert "ranking" not in topshelf("models", "mlp", "--task", "links")
    assert "task must be one of interactions" in topshelf("models", "--task", "link", code=2)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_shown_with_all_that_is_known_of_it(name):
    (row,) = json.loads(topshelf("models", name, "--json"))
    words = " ".join(topshelf("models", name).split())
    assert f"topshelf train --model {name}" in words
    for key in ("summary", "use_when", "cost", "paper", "relations", "about_settings"):
        assert row[key] in words
    for setting, default in row["settings"].items():
        default = tuple(default) if isinstance(default, list) else default
        shown = f"{default:g}" if isinstance(default, float) else default
        assert f"│ model.{setting} │ {shown} │" in words


def test_a_loss_of_two_forms_is_shown_in_both():
    words = " ".join(topshelf("losses", "softmax").split())
    assert "topshelf train --loss softmax" in words
    assert "topshelf train --task ranking --loss softmax" in words
    rows = json.loads(topshelf("losses", "softmax", "--json"))
    assert [(row["form"], row["tasks"]) for row in rows] == [
        ("ragged", ["interactions", "sequences", "links"]),
        ("graded", ["ranking"]),
    ]
    assert "│ loss.tau │ 0.2 │ 0.01, 0.05, 0.1, 0.2, 0.5 │" in words


def test_the_help_names_every_task_and_its_default_model():
    words = {word.strip(",:;.") for word in topshelf("train", "--help").replace("│", " ").split()}
    assert set(CONFIGS) <= words
    assert {schema.model_fields["model"].default.name for schema in CONFIGS.values()} <= words


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    frame = generate(120, 50, interactions_per_user=8, seed=1, timestamps=True).to_frame()
    names = pl.concat_str(pl.lit("user-"), pl.col("user").cast(pl.String))
    frame.with_columns(names.alias("user")).write_csv(folder / "clicks.csv")
    topshelf("train", "--data", folder / "clicks.csv", *SHORT, "--out", folder / "run")
    return folder


def test_a_csv_becomes_a_run_with_its_numbers(folder):
    metrics = json.loads((folder / "run" / "metrics.json").read_text())
    assert metrics["protocol"] == "standard"
    assert 0 < metrics["test"]["ndcg@5"] <= 1
    assert 0 < metrics["test"]["recall@20"] <= 1
    assert metrics["valid"]["ndcg@5"] > 0
    assert metrics["best_epoch"] in (2, 4)
    assert metrics["seconds"] > 0
    assert {file.name for file in (folder / "run").iterdir()} == {
        ".lock",
        "run.json",
        "config.toml",
        "environment.json",
        "race.json",
        "log.jsonl",
        "metrics.json",
        "model.safetensors",
        "interactions.safetensors",
        "users.parquet",
        "items.parquet",
        "checkpoint.safetensors",
        "artifact.safetensors",
    }
    log = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in log] == [1, 2, 3, 4]
    assert "ndcg@5" in log[1]
    assert json.loads((folder / "run" / "environment.json").read_text())["packages"]["torch"]


def test_evaluate_gives_the_same_numbers_as_training(folder):
    metrics = json.loads((folder / "run" / "metrics.json").read_text())
    found = json.loads(topshelf("evaluate", folder / "run", "--json"))
    assert found["mean"]["ndcg@5"] == metrics["test"]["ndcg@5"]
    assert found["protocol"] == "standard"


def test_evaluate_by_another_protocol_and_other_lengths(folder):
    found = json.loads(topshelf("evaluate", folder / "run", "--protocol", "paper", "--cutoffs", "3,7", "--json"))
    assert found["protocol"] == "paper"
    assert found["cutoffs"] == [3, 7]
    shown = topshelf("evaluate", folder / "run", "--cutoffs", "3,7")
    assert "@3" in shown
    assert "ndcg" in shown


def test_similar_items_are_those_of_the_recommender_and_many_rows_are_cut(folder, tmp_path):
    recommender = Recommender.load(folder / "run")
    item = recommender.artifact.items.ids([0])[0]
    expected = recommender.similar_items([item], 3)
    topshelf("similar", folder / "run", "--item", item, "--k", "3", "--out", tmp_path / "similar.parquet")
    assert pl.read_parquet(tmp_path / "similar.parquet").equals(expected)
    shown = topshelf("similar", folder / "run", "--item", item, "--k", "3")
    assert all(str(one) in shown for one in expected["similar"])
    users = [part for user in recommender.artifact.users.ids(range(50)) for part in ("--user", user)]
    assert "the first 200 of 250 rows; --out FILE writes them all" in topshelf("recommend", folder / "run", *users)


def test_one_user_of_a_new_file_can_be_looked_at(folder, tmp_path):
    topshelf("train", "--data", folder / "clicks.csv", "--model", "ease", *SHORT, "--out", tmp_path / "ease")
    pl.DataFrame({"user": ["anna", "anna", "ben"], "item": ["3", "7", "4"]}).write_csv(tmp_path / "new.csv")
    whole = ("recommend", tmp_path / "ease", "--new", tmp_path / "new.csv")
    assert "anna" not in (shown := topshelf(*whole, "--user", "ben"))
    assert "ben" in shown
    assert "--user must be a user of the --new file, such as anna, ben" in topshelf(*whole, "--user", "eve", code=2)


def test_two_runs_are_compared_on_the_same_users(folder):
    topshelf("train", "--data", folder / "clicks.csv", "--model", "popularity", *SHORT, "--out", folder / "popular")
    found = json.loads(topshelf("evaluate", folder / "run", "--against", folder / "popular", "--json"))["against"]
    assert found["metric"] == "ndcg@5"
    assert 0 < found["p_value"] <= 1
    shown = topshelf("evaluate", folder / "run", "--against", folder / "popular")
    assert "minus" in shown
    assert f"{found['mean']['ndcg@5']:.4f}" in shown.partition("auc")[2]
    topshelf("train", "--data", folder / "clicks.csv", "--model", "ease", "--k", "7", "--out", folder / "seven")
    assert "ndcg@7: " in topshelf("evaluate", folder / "seven", "--against", folder / "popular")


def test_recommend_speaks_the_ids_of_the_file(folder):
    assert "user-7" in topshelf("recommend", folder / "run", "--user", "user-7", "--k", "3")
    topshelf("recommend", folder / "run", "--out", folder / "lists.csv")
    lists = pl.read_csv(folder / "lists.csv")
    assert lists["user"].n_unique() == 120
    seen = pl.read_csv(folder / "clicks.csv").select("user", "item")
    assert lists.join(seen, on=["user", "item"], how="inner").height == 0


@pytest.fixture(scope="module")
def ease(folder):
    data = ("--data", folder / "clicks.csv")
    topshelf("train", *data, "--model", "ease", "--k", "5", "--quiet", "--out", folder / "ease")
    return folder / "ease"


def test_recommend_serves_somebody_new_from_items(ease):
    shown = topshelf("recommend", ease, "--items", "3, 7,", "--k", "2")
    expected = Recommender.load(ease).recommend_new({"new": [3, 7]}, k=2)
    for row in expected.iter_rows():
        assert f"{row[0]} │ {row[1]} │ {row[2]} " in " ".join(shown.split())
    assert topshelf("recommend", ease, "--items", "3,7", "--k", "50").count("new") == 48
    assert topshelf("recommend", ease, "--items", "3,7", "--k", "50", "--keep-seen").count("new") == 50
    popular = topshelf("recommend", ease, "--items", "", "--k", "3")
    assert popular.count("new") == 3


def test_recommend_serves_a_file_of_new_users(ease, tmp_path):
    newcomers = pl.DataFrame({"user": ["zoe", "anna", "zoe"], "item": [3, 12, 7]})
    newcomers.write_parquet(tmp_path / "newcomers.parquet")
    newcomers.select(who="user", what="item", stars=pl.Series([5, 1, 4])).write_csv(tmp_path / "newcomers.csv")
    columns = ("--user-column", "who", "--item-column", "what")
    expected = Recommender.load(ease).recommend_new({"zoe": [3, 7], "anna": [12]})
    for file, more in (("newcomers.parquet", ()), ("newcomers.csv", columns)):
        topshelf("recommend", ease, "--new", tmp_path / file, *more, "--out", tmp_path / "lists.parquet")
        assert pl.read_parquet(tmp_path / "lists.parquet").equals(expected)


def test_the_items_of_new_users_are_chosen_by_the_rules_of_the_run(folder, tmp_path):
    clicks = pl.read_csv(folder / "clicks.csv").select(who="user", what="item", stars=pl.col("item") % 5 + 1)
    clicks.write_csv(tmp_path / "rated.csv")
    columns = ("--user-column", "who", "--item-column", "what", "--rating-column", "stars")
    topshelf("train", "--data", tmp_path / "rated.csv", *columns, "--min-rating", "3", "--model", "ease", "--k", "5",
             "--out", tmp_path / "run")  # fmt: skip
    new = pl.DataFrame({"who": ["zoe", "zoe", "anna"], "what": [3, 4, 7], "stars": [3, 1, 2]})
    new.write_csv(tmp_path / "new.csv")
    recommender = Recommender.load(tmp_path / "run")
    for more, histories in (
        ((), {"zoe": [3], "anna": []}),
        (("--rating-column", "none"), {"zoe": [3, 4], "anna": [7]}),
    ):
        topshelf("recommend", tmp_path / "run", "--new", tmp_path / "new.csv", *more, "--out", tmp_path / "lists.csv")
        expected = recommender.recommend_new(histories)
        assert pl.read_csv(tmp_path / "lists.csv").drop("score").equals(expected.drop("score"))


def test_what_new_users_have_is_checked(ease, tmp_path):
    pl.DataFrame({"user": ["zoe"], "thing": [3]}).write_csv(tmp_path / "new.csv")
    assert "Name it with --item-column" in topshelf("recommend", ease, "--new", tmp_path / "new.csv", code=2)
    message = topshelf("recommend", ease, "--items", "lamp,vase", code=2)
    assert "none of the 2 items is in the run's data, got 'lamp', 'vase'; its items look like" in message
    rating = ("--new", tmp_path / "new.csv", "--item-column", "thing", "--rating-column")
    assert "--rating-column must be left out here" in topshelf("recommend", ease, *rating, "stars", code=2)
    assert "zoe" in topshelf("recommend", ease, *rating, "none")
    times = ("--new", tmp_path / "new.csv", "--item-column", "thing", "--time-column", "at")
    assert "the order of items does not matter to model ease" in topshelf("recommend", ease, *times, code=2)


def test_a_config_file_gives_the_same_run_as_the_flags(folder):
    topshelf("train", folder / "run" / "config.toml", "--quiet", "--out", folder / "again")
    first, again = (RunFolder(folder / name).load_model()["model"] for name in ("run", "again"))
    assert all((first[name] == again[name]).all() for name in first)


def test_a_finished_run_resumes_to_itself(folder):
    assert "kept in" in topshelf("train", "--resume", folder / "run")


def test_the_offline_demo_ends_in_a_table_and_a_page(tmp_path):
    shown = topshelf("demo", "--offline", "--out", tmp_path / "demo", "--budget", "1s")
    for text in ("EASE", "Generated data, as asked", "SL@20 lists", "against softmax", "The best of these", "auto: "):
        assert text in shown
    page = (tmp_path / "demo" / "report.html").read_text()
    for text in ("<svg", "What was tried for auto", "Who gains", "Learning curves", "The list of user"):
        assert text in page
    assert topshelf("evaluate", tmp_path / "demo" / "synthetic" / "slatk")


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["train"],
        ["evaluate"],
        ["recommend"],
        ["losses"],
        ["models"],
        ["demo"],
        ["data"],
        ["data", "prepare"],
        ["data", "show"],
    ],
)
def test_help_has_an_example(command):
    shown = topshelf(*command, "--help")
    assert "Usage" in shown
    if command not in ([], ["data"]):
        assert "topshelf" in shown.partition("Usage")[2].partition("\n")[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train", "give --data PATH|NAME or a TOML file"),
        ("train --data {csv}", "give --out FOLDER"),
        ("train --data nowhere.csv --out {new}", "'nowhere.csv' is neither a file nor a named dataset"),
        ("train --data {csv} --k 0 --out {new}", "k: input should be greater than or equal to 1, got 0"),
        ("train --data {csv} --k 51 --out {new}", "k must be <= 50 (clicks.csv has 50 items), got 51"),
        ("train --data {csv} --loss hinge --out {new}", "loss.name must be one of bpr, softmax, slatk"),
        ("train --data {csv} --model vae --out {new}", f"model.name must be one of {', '.join(MODELS)}, got 'vae'"),
        ("models vae", f"model must be one of {', '.join(MODELS)}, transformer, "),
        ("losses hinge", "loss must be one of bpr, softmax, slatk"),
        ("train --data {csv} --set train.epoch=3 --out {new}", "train.epoch is not a setting; accepted here: epochs"),
        (
            "train --data {csv} --set loss.temperature=3 --out {new}",
            "loss.temperature is not a setting; accepted here: k, tau",
        ),
        ("train --data {csv} --set loss.tau=0 --out {new}", "tau must be > 0, got 0"),
        ("train --data {csv} --set epochs --out {new}", "--set takes section.key=value"),
        (
            "train --data {csv} --set negatives.kind=catalogue --set negatives.n=5 --out {new}",
            "negatives.n does not go with",
        ),
        ("train --data {csv} --out {run}", "already holds a run"),
        ("train --resume {new}", "does not exist; a run folder is what topshelf train --out makes"),
        ("train --data {csv} --model ease --loss bpr --out {new}", "--loss does not go with --model ease"),
        ("train --data {csv} --set train.device=gpu --out {new}", "train.device must be a device of this machine"),
        ("train --data {csv} --set evaluate.cutoffs=[0] --out {new}", "evaluate.cutoffs.0"),
        ("train --data {csv} --set loss.k=51 --out {new}", "loss.k must be <= 50"),
        ("train --data {csv} --user-column nobody --out {new}", "nobody"),
        ("train --data {csv} --model xsimgcl --set model.weight=inf --out {new}", "weight must be finite, got inf"),
        (
            "train --data {csv} --model xsimgcl --set model.dim=99999999999999999 --out {new}",
            "dim must leave room in memory for 2 + 2 vectors of that length, got 99999999999999999",
        ),
        (
            "train --data {csv} --model ials --set model.dim=100000000000 --out {new}",
            "dim must leave room in memory for 2 + 2 vectors of that length, got 100000000000",
        ),
        ("train --data {csv} --model ease --set model.memory=8 --out {new}", "memory must be >= 1000, got 8"),
        ("train --data {csv} --model slim --set model.memory=nan --out {new}", "memory must be >= 1000, got nan"),
        (
            "recommend {run}",
            "give --user ID (may be given again), --items IDS for a new user, --new FILE for what came since training",
        ),
        ("recommend {run} --out {new}/lists.csv", "cannot write"),
        ("recommend {run} --user user-1 --items 3", "--items IDS describes a new user: leave out --user and --new"),
        ("similar {run} --item nothing", "--item must be an item of the run's data, such as "),
        ("similar {run} --item 3 --k 0", "k must be >= 1, got 0"),
        ("train --data {csv} --loss slakt --out {new}", "got 'slakt'; did you mean slatk?"),
        ("train --data {csv} --set train.epoch=3 --out {new}", "did you mean epochs or epoch_steps?"),
        ("train --data {csv} --set epochs=3 --out {new}", "did you mean train.epochs?"),
        (
            "train --data {csv} --set epoch=3 --out {new}",
            "got 'epoch' without its section; did you mean train.epochs or train.epoch_steps?",
        ),
        ("train --data {csv} --set tau=0.1 --out {new}", "got 'tau' without its section; did you mean loss.tau?"),
        ("train --data {csv} --set dim=8 --out {new}", "got 'dim' without its section; did you mean model.dim?"),
        ("train --data {csv} --set train.optimizer=admm --out {new}", "got 'admm'; did you mean adam?"),
        ("train --data {csv} --loss SL@K --out {new}", "got 'SL@K'; did you mean slatk?"),
        ("train --data {csv} --model LightGCN++ --out {new}", "got 'LightGCN++'; did you mean lightgcn?"),
        ("train --data movilens-100k --out {new}", "did you mean movielens-100k?"),
        ("data get movilens-100k", "there is no dataset named 'movilens-100k'"),
        ("data get movilens-100k", "did you mean movielens-100k?"),
        ("losses sfotmax", "did you mean softmax?"),
        ("recommend {run} --items 3 --item-column what", "are those of --new FILE; give it too"),
        ("recommend {run} --items 3", "MF has vectors for the users of its training only"),
        ("recommend {run} --new nowhere.csv", "nowhere.csv is not a file"),
        ("train --resume {run} --k 3", "--resume continues a run as it was configured"),
        ("train {new}.toml --out {new}", "does not exist"),
        ("evaluate {new}", "does not exist"),
        ("evaluate {run} --protocol mine", "protocol must be one of standard, paper, got 'mine'"),
        ("evaluate {run} --cutoffs 5,x", "--cutoffs takes whole numbers such as 5,10,20; got '5,x'"),
        ("evaluate {run} --cutoffs 0,5", "got 0"),
        ("evaluate {run} --cutoffs 5,51", "51"),
        ("recommend {run} --user nobody", "nobody"),
        ("recommend {run} --out lists.xls", "--out must end in .parquet, .csv or .jsonl, got lists.xls"),
    ],
)
def test_a_wrong_input_is_one_message_and_exit_code_2(folder, tmp_path, arguments, message):
    places = {"csv": folder / "clicks.csv", "run": folder / "run", "new": tmp_path / "new"}
    errors = topshelf(*arguments.format(**places).split(), code=2)
    assert message in " ".join(errors.split())
    assert not (tmp_path / "new").exists()


def test_the_command_sets_the_waiting_policy_and_prints_no_traceback(tmp_path):
    """The command alone: importing the package changes nothing (tests/test_public_names.py)."""
    script = "import os; from topshelf.__main__ import main\ntry: main()\nfinally: print(os.environ['OMP_WAIT_POLICY'])"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, "-c", script, "evaluate", str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == "PASSIVE\n"
    assert done.stderr == f"error: {tmp_path} is not a run folder: it has no config.toml\n"


def test_the_version_is_printed():
    assert topshelf("--version").strip() == metadata.version("topshelf")


def test_ids_that_look_like_markup_are_printed_as_they_are(tmp_path):
    frame = generate(40, 20, interactions_per_user=6, seed=1).to_frame()
    frame = frame.with_columns(pl.concat_str(pl.lit("[/b"), pl.col("item").cast(pl.String), pl.lit("]")).alias("item"))
    frame.write_csv(tmp_path / "odd[1].csv")
    run = tmp_path / "run[/b]"
    topshelf("train", "--data", tmp_path / "odd[1].csv", *SHORT, "--out", run)
    assert "[/b" in topshelf("recommend", run, "--user", "3")
    assert f"{run} minus {run}" in topshelf("evaluate", run, "--against", run)


def test_ids_that_look_like_emoji_are_printed_as_they_are(tmp_path):
    frame = generate(40, 20, interactions_per_user=6, seed=1).to_frame()
    names = pl.concat_str(pl.lit("urn:book:"), pl.col("item").cast(pl.String))
    frame.with_columns(names.alias("item")).write_csv(tmp_path / "a:cat:.csv")
    data = ("--data", tmp_path / "a:cat:.csv")
    assert "on a:cat:.csv" in topshelf("train", *data, "--model", "ease", "--k", "5", "--out", tmp_path / "run")
    assert topshelf("recommend", tmp_path / "run", "--user", "3").count("urn:book:") == 5
    assert "got 'urn:dog:1'" in topshelf("recommend", tmp_path / "run", "--items", "urn:dog:1", code=2)


def test_runs_on_different_splits_are_not_compared(folder):
    for seed in (0, 1):
        arguments = ("--data", "synthetic", "--model", "popularity", "--k", "5", "--set", f"data.split_seed={seed}")
        topshelf("train", *arguments, "--out", folder / f"seed{seed}")
    errors = topshelf("evaluate", folder / "seed0", "--against", folder / "seed1", code=2)
    assert "both evaluations must be of one split" in errors


def test_a_refitted_run_reports_the_validation_that_chose_it_and_refuses_the_paper_protocol(folder):
    arguments = ("--data", folder / "clicks.csv", *SHORT, "--set", "train.refit=true")
    topshelf("train", *arguments, "--out", folder / "refit")
    metrics, plain = (json.loads((folder / name / "metrics.json").read_text()) for name in ("refit", "run"))
    assert metrics["valid"]["ndcg@5"] == pytest.approx(plain["valid"]["ndcg@5"])
    for runs in ((folder / "refit",), (folder / "run", "--against", folder / "refit")):
        refused = topshelf("evaluate", *runs, "--protocol", "paper", code=2)
        assert f"{folder / 'refit'} was refitted on them; use --protocol standard" in refused


def test_a_run_refitted_on_everything_keeps_the_numbers_made_before(folder):
    arguments = ("--data", folder / "clicks.csv", *SHORT, "--set", "train.refit=all")
    assert "before it was refitted on everything" in topshelf("train", *arguments, "--out", folder / "all")
    metrics, plain = (json.loads((folder / name / "metrics.json").read_text()) for name in ("all", "run"))
    assert metrics["test"] == plain["test"]
    assert metrics["refit"] == "all"
    weights = [RunFolder(folder / name).load_model()["model"] for name in ("all", "run")]
    assert not (weights[0]["item_vectors"] == weights[1]["item_vectors"]).all()
    assert "refitted on everything" in topshelf("evaluate", folder / "all", code=2)
    assert "user-7" in topshelf("recommend", folder / "all", "--user", "user-7", "--k", "3")
    assert "kept in" in topshelf("train", "--resume", folder / "all")


def test_the_demo_never_replaces_what_it_did_not_make(tmp_path):
    (tmp_path / "ease").mkdir()
    (tmp_path / "ease" / "thesis.txt").write_text("years of work")
    assert "did not make" in topshelf("demo", "--offline", "--out", tmp_path, code=2)
    assert (tmp_path / "ease" / "thesis.txt").exists()
