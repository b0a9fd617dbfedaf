"""People who are forgotten: nothing of them is in any file of the run, and the others keep their lists."""

from __future__ import annotations

import json
import shutil

import polars as pl
import pytest
import torch
from torch.testing import assert_close

from command_line import run_topshelf
from topshelf import Recommender, blend, load
from topshelf.data.drift import drifting
from topshelf.errors import ConfigError, DataError, TopshelfError, TopshelfWarning
from topshelf.models import MODELS
from topshelf.training import save
from topshelf.training.folder import RunFolder
from topshelf.versions import forget, search_run, update
from topshelf.versions.searching import read_ids

FRAME = drifting(50, 40, weeks=6, per_week=3.0, blocks=4).with_columns(
    ("person-" + (pl.col("user") * 7919 + 1_000_003).cast(pl.String)).alias("user")
)
GONE = FRAME["user"].unique().sort()[3:6].to_list()


def recommender(model="mf", **more) -> Recommender:
    return Recommender(k=5, model=model, **{"train": {"epochs": 3, "validate_every": 1}, **more})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    recommender().fit(FRAME, out=folder)
    return folder


def texts(folder) -> str:
    """Everything in a folder that can be read as text: raw bytes, and what Parquet holds compressed."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file():
            found.append(path.read_bytes().decode("latin-1"))
            if path.suffix == ".parquet":
                found.append(pl.read_parquet(path).write_csv())
    return "\n".join(found)


def sizes_by_user(folder, n_users) -> list[str]:
    """The tensors of all files, by name, that have a row for each of so many users."""
    found = []
    for path in folder.glob("*.safetensors"):
        from safetensors.torch import load_file

        found += [f"{path.name} {name}" for name, x in load_file(path).items() if n_users in (x.shape or (0,))[:1]]
    return found


@pytest.mark.parametrize("name", MODELS)
def test_nothing_of_them_is_in_any_file(name, tmp_path):
    recommender(name).fit(FRAME, out=tmp_path / "run")
    n_users = FRAME["user"].n_unique()
    assert all(one in texts(tmp_path / "run") for one in GONE)
    gone = forget(tmp_path / "run", GONE, replaced=True)
    assert gone.users == 3
    assert gone.interactions == len(FRAME.filter(pl.col("user").is_in(GONE)))
    left = texts(tmp_path / "run")
    assert not [one for one in GONE if one in left]
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert not sizes_by_user(tmp_path / "run", n_users)
    assert gone.found.is_nothing
    assert gone.found.files == sum(path.is_file() for path in (tmp_path / "run").iterdir())
    assert gone.owing == (() if MODELS[name].is_closed_form else (name,))
    assert len(Recommender.load(tmp_path / "run").artifact.users) == n_users - 3


def test_the_others_keep_their_vectors_and_lists_and_metrics_stay(run, tmp_path):
    before, after = load(run), forget(run, GONE, out=tmp_path / "b").fitted
    stay = [row for row, id in enumerate(before.dataset.split.users.values) if id not in GONE]
    assert_close(after.model.query_vectors, before.model.query_vectors[stay], rtol=0, atol=0)
    assert_close(after.model.item_vectors, before.model.item_vectors, rtol=0, atol=0)
    others = [id for id in before.dataset.split.users.values if id not in GONE]
    old, new = Recommender.load(run).recommend(others), Recommender.load(tmp_path / "b").recommend(others)
    known = set(before.dataset.split.users.ids((before.task.split.seen("train").counts > 0).nonzero().flatten()))
    keep = pl.col("user").is_in(known)  # users without a training item get the most popular ones, which may change
    assert old.filter(keep).select("user", "item").equals(new.filter(keep).select("user", "item"))
    assert any(one in texts(run) for one in GONE)  # the old folder stays as it was
    counts = [one.evaluate(cutoffs=(5,)).to_json()["n_evaluated"] for one in (load(tmp_path / "b"), before)]
    assert counts[0] < counts[1]


@pytest.mark.parametrize("name", ["mf", "ease", "popularity"])
def test_a_refit_is_the_model_that_never_knew_them(name):
    first = recommender(name, data={"valid_fraction": 0.1}).fit(FRAME).fitted
    without = forget(first, GONE, refit=True)
    assert without.owing == ()
    state = without.fitted.model.state_dict()
    changed = forget(first, GONE[:2], refit=True)
    twice = forget(changed.fitted, GONE[2:], refit=True).fitted
    for key, value in twice.model.state_dict().items():
        assert_close(value, state[key], rtol=0, atol=0)
    if name == "popularity":
        rest = FRAME.filter(~pl.col("user").is_in(GONE))
        assert state["counts"].sum() == len(without.fitted.dataset.split.train) <= len(rest)


def test_a_blend_forgets_in_every_part(tmp_path):
    fits = [recommender(one).fit(FRAME).fitted for one in ("mf", "itemknn", "history")]
    blend(fits, weights=[1.0, 1.0, 1.0], out=tmp_path / "run")
    gone = forget(tmp_path / "run", GONE, replaced=True)
    assert gone.owing == ("mf", "history")
    assert not [one for one in GONE if one in texts(tmp_path / "run")]
    again = update(tmp_path / "run", FRAME.head(5).with_columns(pl.lit("new").alias("user")))
    assert [step["kind"] for step in again.origin.lineage] == ["forget", "update"]


def test_what_is_put_into_the_folder_goes_with_the_old_one(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "lists.csv").write_text(f"user,item\n{GONE[0]},1\n")
    forget(tmp_path / "run", GONE, replaced=True)
    assert not (tmp_path / "run" / "lists.csv").exists()


def test_the_search_finds_people_wherever_they_are(run, tmp_path):
    name = GONE[0]
    found = search_run(run, [name])
    assert ("users.parquet", name) in found.places
    for file, text in (("a.json", json.dumps({"a": [{"b": name}]})), ("b.toml", f'x = "{name}"\n'), ("c.txt", name)):
        folder = tmp_path / file
        shutil.copytree(run, folder)
        RunFolder(folder).users.unlink()
        (folder / file).write_text(text)
        assert search_run(folder, [name]).places == ((file, name),)
    (tmp_path / "a.json" / "a.json").write_text(json.dumps({"path": f"/home/{name}/x", name + "x": 1}))
    found = search_run(tmp_path / "a.json", [name])
    assert (found.places, found.words) == ((), (("a.json", name),))
    (tmp_path / "c.txt" / "c.txt").unlink()
    with (tmp_path / "c.txt" / "model.safetensors").open("ab") as file:
        file.write(name.encode("utf-16-le"))
    with pytest.raises(TopshelfError, match="cannot be searched"):
        search_run(tmp_path / "c.txt", [name])


def test_numbers_are_looked_for_as_whole_values(tmp_path):
    frame = drifting(30, 20, weeks=6, per_week=3.0, blocks=2)
    recommender().fit(frame, out=tmp_path / "run")
    assert search_run(tmp_path / "run", [5]).places == (("users.parquet", "5"),)
    gone = forget(tmp_path / "run", [5], replaced=True)
    assert gone.found.is_nothing
    assert 5 not in Recommender.load(tmp_path / "run").artifact.users.values
    assert 5 in Recommender.load(tmp_path / "run").artifact.items.values


def test_a_folder_that_would_still_name_them_is_not_written(run, tmp_path, monkeypatch):
    fitted = load(run)
    data = fitted.dataset
    object.__setattr__(data, "name", GONE[0])  # the data are called like the person
    with pytest.raises(TopshelfError, match=r"still name forgotten users: .*Nothing was written"):
        forget(fitted, GONE, out=tmp_path / "b")
    assert not (tmp_path / "b").exists()
    object.__setattr__(data, "name", f"of {GONE[0]}")
    with pytest.warns(TopshelfWarning, match="also a word of a longer text"):
        forget(fitted, GONE, out=tmp_path / "b")


def test_ids_are_refused_where_nobody_has_them_and_counted_where_some_have(run):
    with pytest.raises(DataError, match="must name users of the run, such as 'person-"):
        forget(run, ["nobody"])
    assert forget(run, ["nobody", GONE[0], GONE[0]]).unknown == ("nobody",)
    assert forget(run, GONE[0]).users == 1
    with pytest.raises(ConfigError, match="not a folder"):
        forget(load(run), GONE, replaced=True)


def test_files_of_ids(tmp_path):
    (tmp_path / "a.txt").write_text("\ufeffanna\n\n ben \n", encoding="utf-8")
    (tmp_path / "b.csv").write_text("item,User ID\n1,anna\n2,ben\n")
    (tmp_path / "c.csv").write_text("anna\nben\n")
    pl.DataFrame({"customer": ["anna", "ben"]}).write_parquet(tmp_path / "d.parquet")
    for name in ("a.txt", "b.csv", "c.csv", "d.parquet"):
        assert read_ids(tmp_path / name) == ["anna", "ben"], name
    (tmp_path / "e.csv").write_text("a,b\n1,2\n")
    (tmp_path / "f.txt").write_text("\n")
    (tmp_path / "g.parquet").write_text("no")
    for name, match in (
        ("e.csv", "column of users"),
        ("f.txt", "got none"),
        ("g.parquet", "cannot be read"),
        ("h", "is not a file"),
    ):
        with pytest.raises(DataError, match=match):
            read_ids(tmp_path / name)


def test_the_command_line_leaves_no_id_in_the_folder(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    output, _ = run_topshelf("forget", tmp_path / "run", "--user", GONE[0], "--user", "nobody", "--quiet")
    assert "nothing left" in output
    assert "--refit" in output
    assert GONE[0] not in texts(tmp_path / "run")  # not in its record of the command line either
    (tmp_path / "gone.txt").write_text("\n".join(GONE[1:]))
    text, _ = run_topshelf(
        "forget", tmp_path / "run", "--users", tmp_path / "gone.txt", "--out", tmp_path / "b", "--refit", "--json"
    )
    assert json.loads(text)["users"] == 2
    assert json.loads(text)["owing"] == []
    assert not [one for one in GONE if one in texts(tmp_path / "b")]
    assert "give --user ID" in run_topshelf("forget", run, code=2)[1]


def test_what_was_learned_with_them_can_be_trained_again_later(run, tmp_path):
    with pytest.raises(DataError, match="users must name users of the run"):  # nobody was forgotten yet
        forget(run, [], out=tmp_path / "none", refit=True)
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    output, _ = run_topshelf("forget", folder, *(f"--user={one}" for one in GONE), "--quiet")
    assert f"topshelf forget {folder} --refit" in output
    before = load(folder).model.encode_items()
    output, _ = run_topshelf("forget", folder, "--refit", "--quiet")
    assert "removed: nobody; what all users share was trained again" in output
    at_once = forget(run, GONE, out=tmp_path / "at-once", refit=True).fitted.model.encode_items()
    after = load(folder).model.encode_items()
    assert_close(after, at_once, rtol=0, atol=0)
    assert not torch.equal(after, before)
    assert "users must name users" in run_topshelf("forget", folder, "--refit", code=2)[1]  # nothing is owed now


def test_a_recommender_forgets_and_can_be_saved(run, tmp_path):
    loaded = Recommender.load(run)
    assert loaded.forget(GONE).users == 3
    with pytest.raises(DataError, match="unknown"):
        loaded.recommend(GONE)
    loaded.save(tmp_path / "b")
    assert not [one for one in GONE if one in texts(tmp_path / "b")]
    save(loaded.fitted, tmp_path / "c")
    assert torch.equal(load(tmp_path / "c").model.query_vectors, loaded.fitted.model.query_vectors)
