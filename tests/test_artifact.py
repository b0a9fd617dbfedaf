"""What answers: the same lists from memory and from a folder, with items allowed or excluded."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from topshelf.artifact import Artifact
from topshelf.config import make_config
from topshelf.data import Dataset, Interactions, generate, make_split
from topshelf.errors import ConfigError, DataError
from topshelf.models import MF, MODELS, Model
from topshelf.queries import EventLists, QuerySet
from topshelf.ragged import Ragged
from topshelf.training import fit, load
from vectors import dense, vectors_of

K = 5


def dataset() -> Dataset:
    return Dataset("generated", make_split(generate(60, 40, seed=4)))


@pytest.fixture(scope="module", params=MODELS)
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / request.param
    config = make_config({"model": {"name": request.param}, "k": K, "train": {"epochs": 2}})
    return fit(config, dataset(), out=folder), folder


def brute_force(fitted, rows, exclude, allowed):
    """Every score sorted by hand: highest first, equal ones by index."""
    queries, items = (dense(table).double() for table in vectors_of(fitted.model))
    lists = []
    for row in rows:
        scores = (queries[row] @ items.T).tolist()
        hidden = set(exclude.slice(row, row + 1).indices.tolist())
        free = [item for item in allowed if item not in hidden]
        lists.append(sorted(free, key=lambda item: (-round(scores[item], 5), item))[:K])
    return lists


def test_lists_are_those_of_every_score_sorted_by_hand(run):
    fitted, folder = run
    artifact, rows = Artifact.open(folder), [3, 41, 3]
    expected = brute_force(fitted, rows, artifact.seen, range(40))
    ranked = artifact.rank(QuerySet(rows=torch.tensor(rows)), exclude=artifact.seen.select(torch.tensor(rows)))
    assert [sorted(one) for one in ranked.items.tolist()] == [sorted(one) for one in expected]
    assert (ranked.scores.diff(dim=1) <= 0).all()


def test_a_folder_answers_as_the_model_in_memory_does(run):
    fitted, folder = run
    opened, made = Artifact.open(folder), Artifact.of(fitted)
    everybody = QuerySet.known(60)
    for one, other in zip(
        opened.rank(everybody, exclude=opened.seen), made.rank(everybody, exclude=made.seen), strict=True
    ):
        assert torch.equal(one, other)
    rows = torch.tensor([0, 7, 39])
    assert torch.equal(opened.similar(rows, 4).items, made.similar(rows, 4).items)


def test_only_allowed_items_are_listed_in_the_order_they_have_among_all(run):
    _, folder = run
    artifact, allow = Artifact.open(folder), torch.tensor([31, 2, 17, 8, 2, 25, 0])
    everybody = QuerySet.known(60)
    ranked = artifact.rank(everybody, 40, exclude=artifact.seen).items
    some = artifact.rank(everybody, exclude=artifact.seen, allow=allow).items
    for whole, chosen in zip(ranked.tolist(), some.tolist(), strict=True):
        expected = [item for item in whole if item in allow.tolist()][:K]
        assert [item for item in chosen if item >= 0] == expected


def test_unknown_queries_get_the_popular_items_without_scores():
    artifact = Artifact.of(fit(make_config({"model": {"name": "ease"}, "k": K}), dataset()))
    popular = sorted(range(40), key=lambda item: (-artifact.counts[item].item(), item))[:K]
    for queries in (
        QuerySet(rows=torch.tensor([-1])),
        QuerySet(history=Ragged(torch.tensor([0, 0]), torch.tensor([]).long())),
    ):
        ranked = artifact.rank(queries)
        assert ranked.items.tolist() == [popular]
        assert ranked.scores.isnan().all()


@pytest.mark.parametrize("allow", [torch.tensor([]).long(), torch.tensor([40]), torch.tensor([-1, 3])])
def test_allowed_items_must_be_items(allow):
    artifact = Artifact.of(fit(make_config({"model": {"name": "popularity"}, "k": K}), dataset()))
    with pytest.raises(DataError, match="allow must hold at least one item index from 0 to 39"):
        artifact.rank(QuerySet.known(60), allow=allow)


def test_a_kind_of_query_that_the_model_cannot_encode_is_refused():
    artifact = Artifact.of(fit(make_config({"model": {"name": "mf"}, "k": K, "train": {"epochs": 1}}), dataset()))
    with pytest.raises(ConfigError, match="MF has vectors for the users of its training only"):
        artifact.rank(QuerySet(history=Ragged(torch.tensor([0, 1]), torch.tensor([3]))))


@pytest.mark.parametrize(
    ("queries", "options", "message"),
    [
        (QuerySet(history=Ragged(torch.tensor([0, 1]), torch.tensor([40]))), {}, "history names item 40"),
        (QuerySet(history=Ragged(torch.tensor([0, 1]), torch.tensor([-1]))), {}, "history names item -1"),
        (QuerySet(history=Ragged(torch.tensor([0, 2]), torch.tensor([3, 3]))), {}, "ascend without repeats"),
        (QuerySet(rows=torch.tensor([60])), {}, "rows must be from 0 to 59, or -1 for an unknown user, got 60"),
        (QuerySet(rows=torch.tensor([-2])), {}, "rows must be from 0 to 59, or -1 for an unknown user, got -2"),
        (
            QuerySet(rows=torch.tensor([1])),
            {"exclude": Ragged(torch.tensor([0, 1]), torch.tensor([-1])), "allow": torch.tensor([3, 39])},
            "exclude names item -1",
        ),
        (
            QuerySet(rows=torch.tensor([1])),
            {"exclude": Ragged(torch.tensor([0, 0, 0]), torch.tensor([]).long())},
            "exclude must have one list per query",
        ),
    ],
)
def test_indices_that_are_not_there_are_refused(queries, options, message):
    artifact = Artifact.of(fit(make_config({"model": {"name": "ease"}, "k": K}), dataset()))
    with pytest.raises(DataError, match=message):
        artifact.rank(queries, **options)


@pytest.mark.parametrize("name", ["ease", "mf"])
def test_all_of_some_known_queries_are_as_many_as_were_asked_for(name):
    artifact = Artifact.of(fit(make_config({"model": {"name": name}, "k": K, "train": {"epochs": 1}}), dataset()))
    ranked, everybody = artifact.rank(QuerySet.known(3)), artifact.rank(QuerySet.known(60))
    assert torch.equal(ranked.items, everybody.items[:3])


class LastItem(MF):
    """A query is the vector of its last item: it needs the order of events, and serves sequences."""

    takes = frozenset({"rows", "sequence"})
    last: torch.Tensor | None = None

    def attach(self, context):
        events: EventLists | None = context.events
        assert events is not None, "the data have an order"
        self.last = events.items.indices[events.items.indptr[1:] - 1]

    def encode_queries(self, queries):
        last = self.last if queries.rows is None else self.last[queries.rows]
        if queries.sequence is not None:
            last = queries.sequence.indices[queries.sequence.indptr[1:] - 1]
        return self.item_vectors[last]

    def encode_items(self):
        return self.item_vectors


def test_a_model_of_sequences_has_the_order_of_events_in_training_and_after_loading(tmp_path):
    """Items of each user in an order that is not that of their indices, with repeats and times."""
    draw = np.random.default_rng(0)
    users = np.repeat(np.arange(30), 8)
    items, times = draw.integers(0, 20, users.size), draw.permutation(users.size)
    table = {"user": users, "item": items, "timestamp": times}
    import polars as pl

    split = make_split(Interactions.from_frame(pl.DataFrame(table)), kind="last")
    config = make_config({"model": {"name": f"{__name__}:LastItem"}, "k": 3, "train": {"epochs": 1}})
    done = fit(config, Dataset("events", split), out=tmp_path / "run")
    events = split.train.events
    expected = events.indices[events.indptr[1:] - 1].tolist()
    for model in (done.model, load(tmp_path / "run").model, Artifact.open(tmp_path / "run").model):
        assert isinstance(model, Model)
        assert model.last.tolist() == expected
    artifact = Artifact.open(tmp_path / "run")
    asked = QuerySet(sequence=Ragged(torch.tensor([0, 3]), torch.tensor([5, 1, int(expected[4])])))
    assert torch.equal(artifact.rank(asked).items[0], artifact.rank(QuerySet(rows=torch.tensor([4]))).items[0])


@pytest.mark.parametrize("row", [-1, 40])
def test_similar_items_of_an_index_that_is_not_there_are_refused(run, row):
    with pytest.raises(DataError, match=f"rows must be from 0 to 39, got {min(row, 3)} to {max(row, 3)}"):
        Artifact.open(run[1]).similar(torch.tensor([3, row]))
