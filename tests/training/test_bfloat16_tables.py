"""Tables of bfloat16: half the memory of a run, and every program that reads a run reads it as ever."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from topshelf import Recommender
from topshelf.config import make_config, merged
from topshelf.data import generate, make_split
from topshelf.data.datasets import Dataset
from topshelf.data.drift import drifting
from topshelf.errors import ConfigError
from topshelf.export import export
from topshelf.models import MF, EncodedRows
from topshelf.queries import Context, QuerySet
from topshelf.ragged import Ragged
from topshelf.training import fit, load
from topshelf.training.folder import RunFolder
from topshelf.training.tasks.catalogue import known_vectors
from topshelf.training.trainer import load_weights
from topshelf.versions import update

ROWS = {"k": 5, "train": {"optimizer": "row_adam", "epochs": 20, "batch_size": 32, "checkpoint_seconds": 0.0}}
HALF = merged(ROWS, {"model": {"tables": "bfloat16"}})


@pytest.fixture(scope="module")
def dataset():
    return Dataset("generated", make_split(generate(150, 60, interactions_per_user=8, seed=3), seed=0))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, dataset):
    """The same run with tables of either type, and their folders."""
    folder = tmp_path_factory.mktemp("runs")
    settings = {"float32": ROWS, "bfloat16": HALF}
    return {name: (fit(make_config(one), dataset, out=folder / name), folder / name) for name, one in settings.items()}


def size(tensors):
    return sum(one.numel() * one.element_size() for one in tensors)


def test_weights_moments_and_best_weights_take_half_the_memory(runs):
    tables = 64 * (150 + 60)
    for name, each in (("float32", 4), ("bfloat16", 2)):
        trainer = RunFolder(runs[name][1]).load_checkpoint()["trainer"]
        assert size(trainer["model"].values()) == size(trainer["best_weights"].values()) == each * tables
        moments = [kept[what] for kept in trainer["optimizer"]["state"].values() for what in ("mean", "square")]
        assert size(moments) == 2 * each * tables
        assert size(RunFolder(runs[name][1]).load_model()["model"].values()) == each * tables


def test_it_learns_what_float32_tables_learn(runs):
    exact, half = (runs[name][0] for name in ("float32", "bfloat16"))
    assert exact.valid_score > 0.25
    assert half.valid_score == pytest.approx(exact.valid_score, abs=0.02)
    losses = [
        [record["loss"] for record in RunFolder(out).load_checkpoint()["trainer"]["progress"]["history"]]
        for _, out in runs.values()
    ]
    assert losses[1] == pytest.approx(losses[0], rel=0.01)


def test_a_run_folder_is_loaded_evaluated_listed_and_exported(runs, tmp_path):
    fitted, out = runs["bfloat16"]
    again = load(out)
    assert again.model.query_vectors.dtype == torch.bfloat16
    for name, table in fitted.model.state_dict().items():
        assert torch.equal(table, again.model.state_dict()[name])
    assert again.test.mean() == fitted.test.mean()
    recommender = Recommender.load(out)
    stored = recommender.artifact.encode(QuerySet.known(150))[torch.arange(150)]
    assert stored.dtype == recommender.artifact.vectors.dtype == torch.float32
    with torch.no_grad():
        assert torch.equal(stored, fitted.model.encode_queries(QuerySet.known(150)))
    assert recommender.recommend(k=3).height == 450
    export(out, "numpy", tmp_path / "exported")
    assert (tmp_path / "exported" / "user_vectors.npy").is_file()


def test_it_is_updated_with_new_users_and_items():
    frame = drifting(80, 60, weeks=8, per_week=3.0, blocks=4)
    early = frame.filter(frame["timestamp"] < frame["timestamp"].quantile(0.8))
    settings = {"model": {"name": "mf", "tables": "bfloat16"}, "train": {"optimizer": "row_adam", "epochs": 3}}
    first = Recommender(k=5, **settings).fit(early)
    second = update(first.fitted, frame.filter(frame["timestamp"] >= frame["timestamp"].quantile(0.8)))
    assert second.model.query_vectors.dtype == torch.bfloat16
    assert second.model.n_queries > first.fitted.model.n_queries
    assert second.model.n_items > first.fitted.model.n_items


def test_new_rows_start_among_what_they_met():
    lists = Ragged(torch.tensor([0, 2, 3, 5]), torch.tensor([0, 2, 2, 1, 2]))  # user 2 and item 2 are new
    model = MF(3, 3, dim=16, tables="bfloat16")
    old = {name: value.float() for name, value in model.state_dict().items()}
    model.place_new(2, 2, Context(lists, 3))
    assert_close(model.item_vectors[:2].float(), old["item_vectors"][:2], rtol=0, atol=0)
    met = torch.nn.functional.normalize(old["query_vectors"][:2], dim=1).sum(0)
    assert torch.cosine_similarity(model.item_vectors[2].float(), met, dim=0) > 0.999
    assert_close(model.item_vectors[2].float().norm(), old["item_vectors"][:2].norm(dim=1).mean(), rtol=0.01, atol=0)


@pytest.mark.parametrize("tables", ["float32", "bfloat16"])
@pytest.mark.parametrize("score", ["cosine", "dot"])
def test_vectors_that_are_encoded_when_asked_for_are_those_of_all(tables, score):
    model = MF(70, 9, dim=8, tables=tables, score=score)
    with torch.no_grad():
        whole = model.encode_queries(QuerySet.known(70))
    rows, some = EncodedRows(model, QuerySet.known(70)), torch.tensor([3, 69, 3, 0])
    assert len(rows) == 70
    assert torch.equal(rows[some], whole[some])
    kept = known_vectors(model, QuerySet.known(70))["queries"]
    assert torch.equal(kept, whole)
    assert kept.dtype == torch.float32
    assert not kept.requires_grad


def test_adam_is_refused(dataset):
    with pytest.raises(ConfigError, match=r"train\.optimizer = 'row_adam', .* got 'adam'"):
        fit(make_config(merged(HALF, {"train": {"optimizer": "adam"}})), dataset)


@pytest.mark.parametrize("name", ["lightgcn", "history", "simplex", "ncf"])
def test_models_without_the_setting_say_so(dataset, name):
    with pytest.raises(ConfigError, match="tables"):
        fit(make_config(merged(HALF, {"model": {"name": name}})), dataset)


def test_another_type_is_refused():
    with pytest.raises(ConfigError, match="tables must be one of float32, bfloat16, got 'float16'"):
        MF(2, 3, tables="float16")


def test_weights_of_the_other_type_are_refused(runs):
    models = {name: fitted.model for name, (fitted, _) in runs.items()}
    for name, other in (("float32", "bfloat16"), ("bfloat16", "float32")):
        with pytest.raises(ValueError, match=rf"query_vectors must be of torch\.{name}, got torch\.{other}"):
            load_weights(models[name], models[other].state_dict())
