"""Versions: loaded beside, checked, switched in one step, rolled back; variants by share of the users."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter

import pytest

from topshelf.errors import CheckpointError, ConfigError, TopshelfError
from topshelf.serving import Engine, Query
from topshelf.serving.refusals import ConflictError
from topshelf.training.folder import RunFolder

USERS = [f"u{n}" for n in range(60)]


@pytest.fixture
def copies(runs, tmp_path):
    """Runs in a folder of the test's own, to damage."""
    for name in ("mf", "mf2", "ranker"):
        shutil.copytree(runs / name, tmp_path / "runs" / name)
    return tmp_path / "runs"


def version_of(path):
    return RunFolder(path).run


def lists(engine, **options):
    return [[one.item for one in engine.recommend(user=user, **options).items] for user in USERS]


def test_a_new_version_is_switched_to_and_rolled_back(runs):
    with Engine(runs / "mf") as engine, Engine(runs / "mf2") as other:
        before, expected = lists(engine), lists(other)
        change = engine.reload("mf2")
        assert (change.version, change.previous) == (version_of(runs / "mf2"), version_of(runs / "mf"))
        assert change.queries >= 60
        assert 0 <= change.overlap < 1
        assert lists(engine) == expected != before
        assert engine.rollback().version == version_of(runs / "mf")
        assert lists(engine) == before
        assert engine.rollback().version == version_of(runs / "mf2")


def test_there_is_nothing_to_go_back_to_at_first(runs):
    with Engine(runs / "mf") as engine, pytest.raises(ConflictError, match="no earlier version"):
        engine.rollback()


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["artifact.safetensors", "items.parquet", "metrics.json", "run.json"])
def test_a_damaged_run_is_refused_and_the_old_one_stays(copies, name):
    with Engine(copies / "mf") as engine:
        before = lists(engine)
        damage(copies / "mf2" / name)
        with pytest.raises(TopshelfError):
            engine.reload("mf2")
        assert lists(engine) == before
        assert engine.states()[0].previous is None


def test_an_unfinished_run_and_one_of_another_task_are_refused(copies):
    (copies / "mf2" / "metrics.json").unlink()
    with Engine(copies / "mf") as engine:
        with pytest.raises(ConfigError, match="is not finished"):
            engine.reload("mf2")
        with pytest.raises(ConfigError, match="all variants must be of one task"):
            engine.reload("ranker", variant="b", share=10)


@pytest.mark.parametrize("run", ["..", ".", "../runs/../..", "/etc", "nowhere", "mf\0", "a/../../../x"])
def test_only_runs_of_the_folder_of_runs_are_opened(runs, run):
    with Engine(runs / "mf") as engine, pytest.raises(TopshelfError):
        engine.reload(run)


def test_a_link_out_of_the_folder_is_not_followed(copies, runs):
    (copies / "link").symlink_to(runs / "mf2")
    with Engine(copies / "mf") as engine, pytest.raises(ConfigError, match="must be the name of a run in the folder"):
        engine.reload("link")


def test_a_version_with_other_lists_can_be_refused(runs):
    with Engine(runs / "mf", check={"overlap": 0.99}) as engine:
        with pytest.raises(CheckpointError, match=r"check\.overlap asks for 0.99; it is not served"):
            engine.reload("mf2")
        assert engine.reload("mf").overlap == 1.0


def test_a_version_that_fails_a_recent_query_is_refused(runs, monkeypatch):
    from topshelf.serving.loaded import Loaded

    with Engine(runs / "mf") as engine:
        engine.recommend(user="u7", k=3)
        answer = Loaded.answer

        def failing(self, asked):
            if self.version == version_of(runs / "mf2") and any(one.user == "u7" and one.k == 3 for one in asked):
                raise TopshelfError("no")
            return answer(self, asked)

        monkeypatch.setattr(Loaded, "answer", failing)
        with pytest.raises(CheckpointError, match="does not answer a sample query: no; it is not served"):
            engine.reload("mf2")
        assert engine.recommend(user="u7").version == version_of(runs / "mf")


def test_one_change_at_a_time(runs):
    with Engine(runs / "mf") as engine, engine.versions._held():
        for change in (engine.reload, engine.rollback, lambda: engine.versions.set_shares({"a": 100})):
            with pytest.raises(ConflictError, match="another change of versions is under way"):
                change()


def test_no_answer_mixes_versions_while_they_are_switched(runs):
    """Whatever version an answer names, its list is that version's."""
    known = {}
    for name in ("mf", "mf2"):
        with Engine(runs / name) as engine:
            answers = engine.recommend_many([Query(user=user) for user in USERS])
            known[version_of(runs / name)] = {
                one.user: [(some.item, round(some.score, 4)) for some in one.items] for one in answers
            }
    wrong, seen, stop = [], Counter(), threading.Event()

    def ask(engine):
        while not stop.is_set():
            answers = engine.recommend_many([Query(user=user) for user in USERS[:20]])
            if len({one.version for one in answers}) != 1:
                wrong.append("two versions in one call")
            for one in answers:
                seen[one.version] += 1
                if [(some.item, round(some.score, 4)) for some in one.items] != known[one.version][one.user]:
                    wrong.append(one)

    with Engine(runs / "mf") as engine:
        threads = [threading.Thread(target=ask, args=(engine,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for n in range(6):
            engine.reload(("mf2", "mf")[n % 2])
            engine.rollback()
            engine.rollback()
            time.sleep(0.02)
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert set(seen) == set(known)
    assert min(seen.values()) > 0


def test_old_versions_are_freed(runs):
    import gc
    import weakref

    with Engine(runs / "mf") as engine:
        first = weakref.ref(engine.versions.current.variants[0].run)
        engine.reload("mf2")
        gc.collect()
        assert first() is not None  # for a rollback
        engine.reload("mf")
        gc.collect()
        assert first() is None


@pytest.fixture
def two(runs):
    with Engine(runs / "mf", variants=[{"run": str(runs / "mf2"), "share": 30}]) as engine:
        yield engine


def variants(engine, users):
    return {user: engine.versions.current.choose(user).name for user in users}


def test_a_share_of_the_users_gets_the_other_run_and_always_the_same(runs, two):
    users = [f"user {n}" for n in range(5000)]
    chosen = variants(two, users)
    assert Counter(chosen.values())["b"] / 5000 == pytest.approx(0.3, abs=0.02)
    with Engine(runs / "mf", variants=[{"run": str(runs / "mf2"), "share": 30}]) as again:
        assert variants(again, users) == chosen
    two.versions.set_shares({"a": 50, "b": 50})
    more = variants(two, users)
    assert Counter(more.values())["b"] / 5000 == pytest.approx(0.5, abs=0.02)
    assert all(more[user] == "b" for user, name in chosen.items() if name == "b")  # a larger share keeps its users


def test_numbers_and_texts_are_the_same_user(two):
    texts = variants(two, [str(n) for n in range(50)])
    assert list(variants(two, range(50)).values()) == list(texts.values())


def test_answers_name_their_variant_and_it_can_be_asked_for(runs, two):
    chosen = variants(two, USERS)
    assert set(chosen.values()) == {"a", "b"}
    version = {"a": version_of(runs / "mf"), "b": version_of(runs / "mf2")}
    for answer in two.recommend_many([Query(user=user) for user in USERS]):
        assert (answer.variant, answer.version) == (chosen[answer.user], version[chosen[answer.user]])
    for name in "ab":
        assert two.recommend(user="u1", variant=name).version == version[name]
        assert two.similar(["i1"], variant=name)[0].version == version[name]
    assert two.recommend(history=["i1"]).variant == "a"


def test_variants_are_added_and_removed_while_it_runs(runs):
    with Engine(runs / "mf") as engine:
        engine.reload("mf2", variant="new", share=25)
        assert [(one.name, one.share) for one in engine.states()] == [("a", 75), ("new", 25)]
        with pytest.raises(ConfigError, match="shares must be from 0 to 100 and 100 together"):
            engine.versions.set_shares({"a": 80, "new": 25})
        with pytest.raises(ConfigError, match="variant must be one of a, new, got 'z'"):
            engine.versions.set_shares({"a": 80, "z": 20})
        with pytest.raises(ConfigError, match="share is for a new variant"):
            engine.reload("mf2", variant="new", share=5)
        with pytest.raises(ConfigError, match="or new with a run and a share"):
            engine.reload(variant="other")
        assert [one.name for one in engine.versions.set_shares({"new": 100})] == ["new"]
        assert engine.recommend(user="u1").variant == "new"


def test_attributes_are_read_again(runs, tmp_path):
    path = tmp_path / "items.csv"
    path.write_text("item,stock\n" + "\n".join(f"i{n},{n % 2}" for n in range(50)))
    with Engine(runs / "mf", attributes=str(path)) as engine:
        assert all(int(one.item[1:]) % 2 for one in engine.recommend(user="u1", filter="stock > 0", k=50).items)
        path.write_text("item,stock\n" + "\n".join(f"i{n},{n % 2 == 0:d}" for n in range(50)))
        engine.reload()
        assert not any(int(one.item[1:]) % 2 for one in engine.recommend(user="u1", filter="stock > 0", k=50).items)
