"""The engine's lists are those of the Recommender; filters and candidates are applied before the top k."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topshelf.errors import ConfigError
from topshelf.ranker import Ranker
from topshelf.recommender import Recommender
from topshelf.serving import DocumentQuery, Engine, Event, Query
from topshelf.serving.refusals import ConflictError

from .conftest import DOCUMENTS, MODELS, N_ITEMS

ITEMS = [f"i{n}" for n in range(N_ITEMS)]
EACH = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(scope="module", params=MODELS)
def both(request, runs, attributes):
    """An engine and the recommender of one run."""
    with Engine(runs / request.param, attributes=str(attributes)) as engine:
        yield engine, Recommender.load(runs / request.param)


def listed(answer):
    return [one.item for one in answer.items]


def scored(answer):
    return {one.item: one.score for one in answer.items}


def reference(recommender, user, **options):
    """The whole list of a user, slowly: every item and its score."""
    return recommender.recommend([user], N_ITEMS, **options)


def test_known_users_get_the_lists_of_the_recommender(both):
    engine, recommender = both
    table = recommender.recommend(k=7)
    users = table["user"].unique(maintain_order=True).to_list()
    answers = engine.recommend_many([Query(user=user, k=7) for user in users])
    assert [item for answer in answers for item in listed(answer)] == table["item"].to_list()
    scores = [score for answer in answers for score in scored(answer).values()]
    np.testing.assert_allclose(scores, table["score"].to_list(), rtol=1e-5, atol=1e-6)
    assert {answer.fallback for answer in answers} == {None}


def test_item_item_models_of_large_catalogues_are_served_from_lists_of_weights(runs, attributes, monkeypatch):
    with Engine(runs / "itemknn", attributes=str(attributes)) as engine:
        asked = [Query(user="u1"), Query(history=ITEMS[:4], filter="price > 10"), Query(user="u2", allow=ITEMS[:20])]
        dense = engine.recommend_many(asked)
        scores = engine.score(Query(user="u3"), ITEMS[:9])
    monkeypatch.setattr("topshelf.models.item_item._DENSE", 0)
    with Engine(runs / "itemknn", attributes=str(attributes)) as engine:
        assert [listed(one) for one in engine.recommend_many(asked)] == [listed(one) for one in dense]
        values = [one.score for one in engine.score(Query(user="u3"), ITEMS[:9]).items]
        np.testing.assert_allclose(values, [one.score for one in scores.items], rtol=1e-5, atol=1e-6)
    with pytest.raises(ConfigError, match=r"itemknn has none; use index\.kind exact"):
        Engine(runs / "itemknn", index={"kind": "hnsw"})


def test_one_query_alone_gives_what_it_gives_in_a_batch(both):
    engine, _ = both
    queries = [Query(user=f"u{n}", k=n % 7 + 1, exclude=ITEMS[: n % 5]) for n in range(30)]
    queries += [Query(history=ITEMS[n : n + 3], filter="price > 10") for n in range(5)]
    queries += [Query(user=f"u{n}", allow=ITEMS[:20], k=3) for n in range(5)] + [Query(user="nobody"), Query()]
    together = engine.recommend_many(queries)
    alone = [engine.recommend(query) for query in queries]
    assert [listed(one) for one in together] == [listed(one) for one in alone]
    for one, other in zip(together, alone, strict=True):
        expected = [score or 0 for score in scored(other).values()]
        np.testing.assert_allclose([score or 0 for score in scored(one).values()], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["ease", "sasrec"])
def test_new_users_get_the_lists_of_the_recommender_in_their_order(runs, name):
    recommender = Recommender.load(runs / name)
    histories = [["i3", "i9", "i1"], ["i1", "i9", "i3"], ["i7"]]
    table = recommender.recommend_new(histories, 6)
    with Engine(runs / name) as engine:
        answers = engine.recommend_many([Query(history=some, k=6) for some in histories])
        known = engine.recommend(user="u5", history=["i3"], k=6)
    assert [item for answer in answers for item in listed(answer)] == table["item"].to_list()
    assert listed(known) == recommender.recommend_new({"u5": ["i3"]}, 6)["item"].to_list()
    is_same = listed(answers[0]) == listed(answers[1])
    assert is_same == (name == "ease")  # a set, or a sequence


@settings(max_examples=60, deadline=None)
@given(
    user=st.integers(0, 59),
    k=st.integers(1, 60),
    exclude=st.lists(st.sampled_from(ITEMS), max_size=8),
    allow=st.none() | st.lists(st.sampled_from(ITEMS), max_size=30),
    price=st.none() | st.integers(0, 50),
    filter_seen=st.none() | st.booleans(),
)
def test_what_is_left_out_is_left_out_before_the_top_k(both, user, k, exclude, allow, price, filter_seen):
    engine, recommender = both
    condition = None if price is None else f"price < {price}"
    answer = engine.recommend(
        user=f"u{user}", k=k, exclude=exclude, allow=allow, filter=condition, filter_seen=filter_seen
    )
    whole = reference(recommender, f"u{user}", filter_seen=filter_seen)["item"].to_list()
    may = [item for item in whole if item not in exclude and (allow is None or item in allow)]
    if price is not None:
        may = [item for item in may if item not in ("i3", "i49") and int(item[1:]) < price]
    assert listed(answer) == may[:k]


def test_scores_do_not_change_under_a_filter(both):
    engine, _ = both
    plain = scored(engine.recommend(user="u1", k=50))
    for options in ({"filter": "price > 5"}, {"filter": "price < 5"}, {"allow": ITEMS[:9]}):
        some = scored(engine.recommend(user="u1", k=50, **options))
        assert some
        np.testing.assert_allclose(list(some.values()), [plain[item] for item in some], rtol=1e-5, atol=1e-6)


def test_reasons_are_those_of_the_recommender(both):
    engine, recommender = both
    table = recommender.recommend(["u1"], 4, why=3)
    assert [one.because for one in engine.recommend(user="u1", k=4, explain=3).items] == table["because"].to_list()


def test_who_the_model_cannot_answer_gets_the_popular_list_with_a_flag(runs):
    with Engine(runs / "mf") as engine:
        nobody, history, empty = engine.recommend_many([Query(user="x"), Query(history=["i1"]), Query()])
        counts = engine.versions.current.variants[0].run.artifact.counts.numpy()
    order = [f"{item}" for item in engine_ids(engine)]
    popular = [order[at] for at in np.argsort(-counts, kind="stable")]
    assert (nobody.fallback, history.fallback, empty.fallback) == (
        "unknown_user", "model_takes_no_history", "no_history",
    )  # fmt: skip
    assert listed(nobody) == listed(empty) == popular[:5]
    assert listed(history) == [item for item in popular if item != "i1"][:5]
    assert all(one.score is None for one in nobody.items)


def engine_ids(engine):
    return engine.versions.current.variants[0].run.item_ids


def test_the_popular_list_is_filtered_too(runs, attributes):
    with Engine(runs / "mf", attributes=str(attributes)) as engine:
        whole = listed(engine.recommend(k=50))
        cheap = listed(engine.recommend(k=3, filter="price < 9", exclude=["i1"]))
        some = listed(engine.recommend(k=3, allow=["i1", "i2", "i4"], exclude=["i2"]))
    assert cheap == [item for item in whole if item != "i3" and int(item[1:]) < 9 and item != "i1"][:3]
    assert some == [item for item in whole if item in ("i1", "i4")]


def test_unknown_items_are_counted_and_ignored(both):
    engine, _ = both
    answer = engine.recommend(user="u1", exclude=["x", "i1"], allow=["i2", "i4", "y"])
    assert answer.unknown_items == 2
    assert set(listed(answer)) <= {"i2", "i4"}
    assert engine.recommend(user="u1", allow=["nothing"]).items == []


def test_every_answer_names_its_version(both):
    engine, _ = both
    version = engine.states()[0].version
    assert engine.recommend(user="u1").version == engine.recommend(user="?").version == version
    assert engine.similar(["i1"])[0].version == engine.score(Query(user="u1"), ["i1"]).version == version


def test_similar_items_are_those_of_the_recommender(both):
    engine, recommender = both
    known, unknown = engine.similar(["i4", "nothing"], 6)
    table = recommender.similar_items(["i4"], 6)
    assert [one.item for one in known.similar] == table["similar"].to_list()
    np.testing.assert_allclose([one.score for one in known.similar], table["score"].to_list(), rtol=1e-5)
    assert (unknown.is_known, unknown.similar) == (False, [])


def test_given_items_are_scored_in_their_order(both):
    engine, recommender = both
    table = reference(recommender, "u2", filter_seen=False)
    whole = dict(zip(table["item"].to_list(), table["score"].to_list(), strict=True))
    answer = engine.score(Query(user="u2"), ["i9", "nothing", "i1"])
    assert listed(answer) == ["i9", "nothing", "i1"]
    np.testing.assert_allclose([answer.items[0].score, answer.items[2].score], [whole["i9"], whole["i1"]], atol=1e-5)
    assert (answer.items[1].score, answer.unknown_items) == (None, 1)


def test_documents_are_ranked_as_by_the_ranker(runs):
    table = Ranker.load(runs / "ranker").rank(DOCUMENTS)
    rows = DOCUMENTS.select("clicks", "age").to_dicts()
    queries = [DocumentQuery(query=n, documents=rows[4 * n : 4 * n + 4]) for n in range(20)]
    with Engine(runs / "ranker") as engine:
        answers = engine.rank(queries)
        as_lists = engine.rank([DocumentQuery(documents=[list(row.values()) for row in rows[:4]])])
        with pytest.raises(ConflictError, match="ranks documents; lists of items need a run of interactions"):
            engine.recommend(user="u1")
        with pytest.raises(Exception, match="has no feature 'age'; it must have clicks, age"):
            engine.rank([DocumentQuery(documents=[{"clicks": 1}])])
        with pytest.raises(Exception, match="must have 2 features, got 3"):
            engine.rank([DocumentQuery(documents=[[1, 2, 3]])])
    for n, answer in enumerate(answers):
        part = table.filter(table["query"] == n).sort("rank")
        assert [one.document + 1 for one in answer.documents] == part["document"].to_list()
        np.testing.assert_allclose([one.score for one in answer.documents], part["score"].to_list(), rtol=1e-6)
    assert as_lists[0].documents == answers[0].documents


def test_a_run_of_lists_does_not_rank_documents(runs):
    with Engine(runs / "mf") as engine, pytest.raises(ConflictError, match="documents need a run of task ranking"):
        engine.rank([DocumentQuery(documents=[[1.0]])])


def test_events_are_in_the_next_answer(runs, tmp_path):
    for name in ("mf", "ease", "sasrec"):
        recommender = Recommender.load(runs / name)
        with Engine(runs / name, events={"path": str(tmp_path / f"{name}.db")}) as engine:
            before = engine.recommend(user="u1")
            engine.record([Event(user="u1", item=before.items[0].item)])
            after = engine.recommend(user="u1", k=8)
            assert before.items[0].item not in listed(after)
            if name != "mf":  # which only leaves the item out
                expected = recommender.recommend_new({"u1": [before.items[0].item]}, 8)
                assert listed(after) == expected["item"].to_list()
            engine.record([Event(user="new", item="i1"), Event(user="new", item="not in the run")])
            new = engine.recommend(user="new", k=8)
            assert (new.fallback is None) == (name != "mf")
            assert "i1" not in listed(new)
            assert [one.item for one in engine.history("new").items] == ["i1"]


def test_events_that_a_run_has_learned_from_are_not_counted_twice(runs, tmp_path):
    with Engine(runs / "sasrec", events={"path": str(tmp_path / "events.db")}) as engine:
        run = engine.versions.current.variants[0].run
        row = run.artifact.users.get("u4")
        last = [run.item_ids[at] for at in run.events.of(row)[-3:]]
        before = engine.recommend(user="u4", k=9)
        engine.record([Event(user="u4", item=item) for item in last])
        assert engine.recommend(user="u4", k=9).items == before.items
        engine.record([Event(user="u4", item="i1")])
        expected = Recommender.load(runs / "sasrec").recommend_new({"u4": ["i1"]}, 9)
        assert listed(engine.recommend(user="u4", k=9)) == expected["item"].to_list()


def test_history_and_search(runs):
    recommender = Recommender.load(runs / "mf")
    with Engine(runs / "mf") as engine:
        row = recommender.artifact.users.get("u1")
        has = recommender.artifact.items.ids(recommender.artifact.taken.select(np_tensor([row])).indices)
        assert [one.item for one in engine.history("u1").items] == has
        assert engine.history("nobody").fallback == "no_history"
        found = [one.item for one in engine.search("I4", 50).items]
        assert sorted(found) == sorted(item for item in ITEMS if "i4" in item)
        assert engine.search("%").items == []


def np_tensor(values):
    import torch

    return torch.tensor(values)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"k": 5000}, r"k must be <= 1000 \(limits.k\), got 5000"),
        ({"filter": "price < 3"}, "filter needs a table of item attributes"),
        ({"variant": "z"}, "variant must be one of a, got 'z'"),
        ({"history": ["i1"] * 20_000}, r"the number of item ids must be <= 10000 \(limits.ids\), got 20000"),
        ({"nothing": 1}, "nothing is not a setting; accepted here: k, exclude"),
        ({"user": 1.5}, "user"),
        ({"k": True}, "k"),
    ],
)
def test_what_cannot_be_asked_is_refused(runs, query, message):
    with Engine(runs / "mf") as engine, pytest.raises(ConfigError, match=message):
        engine.recommend(**query)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"index": {"kind": "annoy"}}, "index.kind"),
        ({"variants": [{"run": "x", "name": "a", "share": 5}]}, "each variant must have its own name"),
        ({"variants": [{"run": "x", "share": 101}]}, "variants.0.share"),
        ({"batch": {"sizes": 5}}, "batch.sizes is not a setting; accepted here: size"),
    ],
)
def test_wrong_settings_are_refused(runs, settings, message):
    with pytest.raises(ConfigError, match=message):
        Engine(runs / "mf", **settings)
