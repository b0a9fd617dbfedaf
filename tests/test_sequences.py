"""New users of a model of sequences: what they did reaches the model in order."""

from __future__ import annotations

import polars as pl
import pytest
import torch
import torch.nn.functional as F

from command_line import run_topshelf
from topshelf import Recommender
from topshelf.artifact import Artifact, _check
from topshelf.config import make_config
from topshelf.data import Dataset, Interactions, make_split
from topshelf.errors import ConfigError, DataError
from topshelf.models import EASE, MF, MODELS, History, Model, Popularity
from topshelf.models.describe import takes_new_users
from topshelf.models.tables import for_score
from topshelf.queries import Encoded
from topshelf.ragged import Ragged
from topshelf.testing import ModelContract
from topshelf.training import fit

N_ITEMS = 12


class NextItem(Model):
    """After item i comes item i + 1: a query is the one-hot vector of the item after its last one."""

    takes = frozenset({"rows", "sequence"})
    is_closed_form = True
    events: Ragged

    def fit(self, context):
        self.attach(context)

    def attach(self, context):
        assert context.events is not None
        self.events = context.events.items

    def encode_queries(self, queries):
        lists = self.events.select(queries.rows) if queries.sequence is None else queries.sequence
        last = torch.full((len(lists),), -1)
        last[lists.counts > 0] = lists.indices[lists.indptr[1:][lists.counts > 0] - 1]
        return torch.eye(self.n_items)[(last + 1) % self.n_items]

    def encode_items(self):
        return torch.eye(self.n_items)


class Recent(History):
    """A sum of item vectors in which the last item counts four times."""

    takes = frozenset({"rows", "sequence"})
    events: Ragged

    def attach(self, context):
        self.events = context.events.items

    def encode_queries(self, queries):
        lists = self.events.select(queries.rows) if queries.sequence is None else queries.sequence
        weight = torch.ones(lists.indices.numel(), 1)
        weight[lists.indptr[1:][lists.counts > 0] - 1] = 4.0
        sums = torch.zeros(len(lists), self.history_vectors.size(1))
        return for_score(
            self.score, sums.index_add(0, lists.owner(), weight * F.embedding(lists.indices, self.history_vectors))
        )

    def encode_batch(self, batch):
        return Encoded(self.encode_queries(batch.queries), self.encode_items())


class TestRecent(ModelContract):
    """The contract of a model of sequences."""

    model = Recent
    tolerance = 1e-5


def events() -> pl.DataFrame:
    """Items are places of a ring; user u does those at u, u + 5, u, u + 1, u + 9 and u + 3."""
    rows = [(u, i % N_ITEMS, t) for u in range(N_ITEMS) for t, i in enumerate((u, u + 5, u, u + 1, u + 9, u + 3))]
    return pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")


def trained(model: str, out=None) -> Recommender:
    config = make_config({"model": {"name": model}, "k": 3, "train": {"epochs": 1}})
    split = make_split(Interactions.from_frame(events()), kind="last")
    return Recommender.of(fit(config, Dataset("ring", split), out=out))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sequences") / "run"
    trained(f"{__name__}:NextItem", out=folder)
    return folder


@pytest.fixture
def built_in(monkeypatch, tmp_path):
    """The run folder of a sequence model that is in the registry."""
    monkeypatch.setitem(MODELS, "next", NextItem)
    trained("next", out=tmp_path / "run")
    return tmp_path / "run"


def firsts(table: pl.DataFrame) -> list[int]:
    return table.filter(pl.col("rank") == 1)["item"].to_list()


def test_the_order_of_given_items_reaches_the_model(folder):
    for recommender in (Recommender.load(folder), trained(f"{__name__}:NextItem")):
        new = recommender.recommend_new([[7, 2], [2, 7], [2, 7, 2]], filter_seen=False)
        assert firsts(new) == [3, 8, 3]


def test_a_known_user_has_the_events_of_the_data_before_the_given_ones(folder):
    recommender = Recommender.load(folder)
    asked = recommender.recommend_new({4: [], 6: [2, 1], "new": [9, 3]}, filter_seen=False)
    assert firsts(asked) == [8, 2, 4]  # the last event of user 4 in all its data is item 7


def test_items_that_a_user_has_are_left_out_whatever_their_order(folder):
    assert firsts(Recommender.load(folder).recommend_new([[7, 3, 2]])) != [3]


def test_an_empty_sequence_gets_the_most_popular_items(folder):
    assert Recommender.load(folder).recommend_new([[]])["score"].is_null().all()


def test_items_on_the_command_line_are_in_order(folder, tmp_path):
    for items, expected in (("7,2", 3), ("2,7", 8)):
        run_topshelf("recommend", folder, "--items", items, "--keep-seen", "--out", tmp_path / "lists.csv")
        assert firsts(pl.read_csv(tmp_path / "lists.csv")) == [expected]


def test_a_file_is_in_the_order_of_its_times_and_without_them_of_its_rows(folder, tmp_path):
    rows = pl.DataFrame({"user": ["a", "b", "a", "b"], "item": [2, 3, 7, 9], "at": [9, 1, 4, 2]})
    for times, expected in (("at", [3, 10]), ("none", [8, 10])):
        rows.write_csv(tmp_path / "week.csv")
        columns = ("--time-column", times, "--keep-seen", "--out", tmp_path / "lists.csv")
        run_topshelf("recommend", folder, "--new", tmp_path / "week.csv", *columns)
        assert firsts(pl.read_csv(tmp_path / "lists.csv")) == expected


def test_a_built_in_model_of_sequences_answers_from_its_folder_too(built_in):
    artifact = Artifact.open(built_in)
    assert firsts(Recommender.load(built_in).recommend_new([[7, 2]], filter_seen=False)) == [3]
    learned = make_split(Interactions.from_frame(events()), kind="last").train.events.ragged()
    assert torch.equal(artifact.model.events.indices, learned.indices)


def test_events_that_an_artifact_keeps_are_checked_and_used(folder):
    fitted = Recommender.load(folder).fitted
    lists = {"indptr": torch.arange(N_ITEMS + 1), "indices": torch.arange(N_ITEMS).flip(0)}
    artifact = Artifact.of(fitted)
    kept = {"indptr": artifact.seen.indptr, "indices": artifact.seen.indices}
    state = {"seen": kept, "n_learned": artifact.n_learned, "counts": artifact.counts, **artifact._stored}
    _check({**state, "events": lists}, N_ITEMS, N_ITEMS, asks_events=True)
    ids = (fitted.dataset.split.users, fitted.dataset.split.items, None)
    made = Artifact._from({**state, "events": lists}, fitted.config, *ids, lambda: fitted.model, pytest.fail)
    assert made.events.indices.tolist() == list(range(N_ITEMS))[::-1]
    lists["indices"][3] = N_ITEMS
    with pytest.raises(DataError, match="events names item 12 in list 3"):
        _check({**state, "events": lists}, N_ITEMS, N_ITEMS, asks_events=True)


def test_known_users_without_an_order_are_refused_and_new_ones_are_not():
    recommender = trained(f"{__name__}:NextItem")
    recommender.artifact._load_events = lambda: None
    with pytest.raises(DataError, match="NextItem takes what a user did in order, and the run's data do not say"):
        recommender.recommend_new({4: [1]})
    assert firsts(recommender.recommend_new([[7, 2]], filter_seen=False)) == [3]


def test_a_model_that_takes_both_serves_known_users_of_data_without_an_order():
    recommender = trained("popularity")
    recommender.artifact._load_events = lambda: None
    assert recommender.recommend_new({4: [1]}).height == 3


def test_a_kind_that_a_model_does_not_take_is_named_with_those_it_takes():
    EASE(2, 3).check_takes("history")
    with pytest.raises(ConfigError, match="EASE takes queries of the kinds rows, history, got the kind sequence"):
        EASE(2, 3).check_takes("sequence")
    with pytest.raises(ConfigError, match=r"MF has vectors for the users of its training only.* got a history"):
        MF(2, 3).check_takes("history")


def test_models_of_sequences_take_new_users():
    assert [takes_new_users(cls) for cls in (NextItem, EASE, Popularity, MF)] == [True, True, True, False]
