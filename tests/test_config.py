"""Settings: checked, merged, overridden, written and read again."""

from __future__ import annotations

import tomllib
from importlib import resources

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topshelf.config import (
    Component,
    RunConfig,
    assemble,
    complete,
    make_config,
    merged,
    overrides,
    preset,
    read_config,
    to_toml,
)
from topshelf.data import DATASETS
from topshelf.errors import ConfigError
from topshelf.training.build import REGISTRIES, resolve

FOLDER = resources.files("topshelf") / "configs"
SHIPPED = sorted(entry.name for entry in FOLDER.iterdir() if entry.name.endswith(".toml")) if FOLDER.is_dir() else []


def section(**fields):
    return st.fixed_dictionaries({}, optional=fields)


whole = st.integers(1, 10**6)
share = st.floats(0.001, 0.999)
size = st.floats(1e-12, 1e300)
text = st.text(st.characters(codec="utf-8"))
name = text | st.none()
CONFIGS = section(
    seed=st.integers(0, 2**62),
    k=whole,
    data=section(
        source=text, user=name, item=name, weight=name, timestamp=name,
        min_rating=st.floats(allow_nan=False) | st.none(), core=st.integers(0, 50),
        split=st.sampled_from(["auto", "ratio", "last", "time"]), test_fraction=share,
        valid_fraction=share, last_n=whole, noise=st.floats(0, 10),
    ),
    model=section(name=text, dim=whole, memory=size, score=text),
    loss=section(name=text, tau=size, detach_weight=st.booleans(), several=st.lists(st.floats(0, 1), max_size=3)),
    negatives=section(
        kind=st.sampled_from(["auto", "catalogue", "shared", "per_query", "in_batch"]), n=whole | st.none(),
        effective_n=whole | st.none(), paper_n=whole,
    ),
    threshold=section(estimator=st.sampled_from(["exact", "weighted"]), every=whole, n=whole, rate=size | st.none()),
    train=section(
        epochs=whole, order=st.sampled_from(["query", "pair"]), batch_size=whole, learning_rate=size,
        weight_decay=st.floats(0, 1), patience=st.integers(0, 9), refit=st.booleans(), device=text,
    ),
    evaluate=section(protocol=st.sampled_from(["standard", "paper"]), cutoffs=st.lists(whole), auc=st.booleans()),
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(values=CONFIGS)
def test_a_config_written_as_toml_reads_the_same(values):
    config = make_config(values)
    assert make_config(tomllib.loads(to_toml(config))) == config


def test_a_config_file_reads_the_same(tmp_path):
    loss = {"name": "slatk", "tau": 0.1, "tau_weight": 2.0}
    config = make_config({"loss": loss, "data": {"source": 'a "b"\\c\n.csv'}, "k": 3})
    (tmp_path / "run.toml").write_text(to_toml(config), encoding="utf-8")
    assert make_config(read_config(tmp_path / "run.toml")) == config
    assert assemble(file=tmp_path / "run.toml") == config


def test_sections_cannot_be_changed_once_made():
    with pytest.raises(ValueError, match="frozen"):
        RunConfig().train.epochs = 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sed": 1}, r"sed is not a setting; accepted here: task, seed, k, data, model, loss, train, evaluate, neg"),
        ({"train": {"epoch": 1}}, r"train\.epoch is not a setting; accepted here: epochs, order, batch_size"),
        ({"data": {"path": "x"}}, r"data\.path is not a setting; accepted here: source, user, item"),
        ({"k": 0}, r"k: input should be greater than or equal to 1, got 0"),
        ({"k": "ten"}, r"k: input should be a valid integer.*, got 'ten'"),
        ({"seed": -1}, r"seed: .*, got -1"),
        ({"train": 5}, r"train: input should be a valid dictionary.*, got 5"),
        ({"loss": "slatk"}, r"loss: .*, got 'slatk'"),
        ({"train": {"learning_rate": float("nan")}}, r"train\.learning_rate: .*got nan"),
        ({"data": {"split": "leave-one-out"}}, r"data\.split: input should be 'auto', 'ratio', 'last' or 'time'"),
        ({"evaluate": {"cutoffs": [5, "x"]}}, r"evaluate\.cutoffs\.1: .*got 'x'"),
    ],
)
def test_wrong_settings_are_refused_with_the_rule_and_the_value_received(values, message):
    with pytest.raises(ConfigError, match=message):
        make_config(values)


def test_every_wrong_setting_is_named_at_once():
    with pytest.raises(ConfigError, match=r"(?s)k: .*\n.*train\.epochs"):
        make_config({"k": 0, "train": {"epochs": 0}})


def test_k_is_among_the_cutoffs():
    assert make_config({"k": 7, "evaluate": {"cutoffs": [20, 5]}}).cutoffs == (5, 7, 20)


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("a.b=5", 5),
        ("a.b = -2.5e-3", -0.0025),
        ("a.b=true", True),
        ("a.b=[5, 10]", [5, 10]),
        ("a.b='quoted'", "quoted"),
        ("a.b=plain text", "plain text"),
        ("a.b=x=y", "x=y"),
        ("a.b=", ""),
        ("a.b=2024-01-31", "2024-01-31"),
        ("a.b=[5, 10", "[5, 10"),
    ],
)
def test_an_override_is_toml_where_it_can_be_and_else_a_string(assignment, value):
    assert overrides([assignment]) == {"a": {"b": value}}


def test_overrides_are_joined_and_the_last_wins():
    assert overrides(["a.b=1", "c=2", "a.d=3", "a.b=4"]) == {"a": {"b": 4, "d": 3}, "c": 2}
    assert overrides([]) == {}


@pytest.mark.parametrize("text", ["train.epochs", "", "=5", "train.=5", ".epochs=5", "a..b=5"])
def test_an_override_without_key_and_value_is_refused(text):
    with pytest.raises(ConfigError, match=r"--set takes section\.key=value, .*; got "):
        overrides([text])


NESTED = st.dictionaries(
    st.sampled_from("abc"), st.integers() | st.dictionaries(st.sampled_from("xyz"), st.integers()), max_size=3
)


@settings(deadline=None)
@given(base=NESTED, over=NESTED)
def test_merging_puts_every_value_in_front_and_loses_none(base, over):
    before = repr((base, over))
    result = merged(base, over)
    assert repr((base, over)) == before
    assert set(result) == set(base) | set(over)
    for key, value in result.items():
        if isinstance(base.get(key), dict) and isinstance(over.get(key), dict):
            assert value == {**base[key], **over[key]}
        else:
            assert value == over.get(key, base.get(key))


def test_a_component_of_another_name_starts_afresh():
    base = {"loss": {"name": "slatk", "tau": 0.1}}
    assert merged(base, {"loss": {"name": "bpr"}}) == {"loss": {"name": "bpr"}}
    assert merged(base, {"loss": {"name": "slatk", "k": 3}}) == {"loss": {"name": "slatk", "tau": 0.1, "k": 3}}
    assert merged(base, {"loss": {"k": 3}}) == {"loss": {"name": "slatk", "tau": 0.1, "k": 3}}


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A folder of presets of our own."""
    (tmp_path / "configs").mkdir()
    monkeypatch.setattr("topshelf.config.resources.files", lambda _: tmp_path)
    return tmp_path / "configs"


def test_what_is_named_goes_before_a_preset(shipped):
    (shipped / "food.mf.slatk.toml").write_text("k = 7\nseed = 5\n[loss]\nname = 'slatk'\ntau = 0.3\n")
    (shipped / "default.mf.slatk.toml").write_text("k = 9\n")
    config = assemble(data="food", k=3, more={"loss": {"tau_weight": 2.0}})
    assert (config.k, config.seed, config.data.source) == (3, 5, "food")
    assert config.loss == Component(name="slatk", tau=0.3, tau_weight=2.0)
    assert assemble(data="food", k=3, more={"k": 4}).k == 4
    assert assemble(data="elsewhere.csv").k == 9
    assert assemble(data="food", loss="bpr") == make_config({"data": {"source": "food"}, "loss": {"name": "bpr"}})


def test_the_nearest_preset_is_taken(shipped):
    for place, name in enumerate(["food.ease.bpr", "food.ease", "default.ease.bpr", "default.ease"], start=1):
        (shipped / f"{name}.toml").write_text(f"k = {place}\n")
    found = [preset(*names)["k"] for names in [("food", "ease", "bpr"), ("food", "ease", "x"), ("x", "ease", "bpr")]]
    assert [*found, preset("x", "ease", "x")["k"]] == [1, 2, 3, 4]


def test_what_is_shipped_for_a_dataset_is_behind_what_is_shipped_for_a_model_on_it(shipped):
    (shipped / "food.toml").write_text("k = 7\nseed = 5\n[negatives]\npaper_n = 200\n")
    (shipped / "food.mf.slatk.toml").write_text("k = 9\n")
    (shipped / "default.mf.bpr.toml").write_text("seed = 6\n")
    config = assemble(data="food")
    assert (config.k, config.seed, config.negatives.paper_n) == (9, 5, 200)
    assert preset("food", "mf", "bpr") == {"k": 7, "seed": 6, "negatives": {"paper_n": 200}}
    assert assemble(data="food", more={"negatives": {"kind": "shared"}}).negatives.paper_n == 200
    assert preset("elsewhere.csv", "mf", "slatk") == {}


def test_a_file_stands_in_for_the_preset(shipped, tmp_path):
    (shipped / "food.mf.slatk.toml").write_text("k = 7\n[train]\nepochs = 3\n")
    (tmp_path / "run.toml").write_text("seed = 2\n[train]\nepochs = 8\n[loss]\nname = 'softmax'\ntau = 0.4\n")
    config = assemble(file=tmp_path / "run.toml", data="food", more={"train": {"patience": 1}})
    assert (config.k, config.seed, config.train.epochs, config.train.patience) == (20, 2, 8, 1)
    assert config.loss == Component(name="softmax", tau=0.4)
    assert assemble(file=tmp_path / "run.toml", loss="slatk").loss == Component(name="slatk")
    assert assemble(file=tmp_path / "run.toml", seed=9, more={"seed": 4}).seed == 4


def test_without_any_preset_there_are_the_defaults(shipped):
    assert assemble() == RunConfig()
    shipped.rmdir()
    assert preset("food", "mf", "slatk") == {}


def test_settings_of_a_component_need_no_name():
    assert assemble(data="x.csv", more={"loss": {"tau": 0.1}}).loss == Component(
        name="slatk", tau=0.1, tau_weight="auto"
    )
    assert make_config({"model": {"dim": 8}}).model == Component(name="mf", dim=8)


def test_a_preset_is_never_read_from_beside_the_data(tmp_path):
    (tmp_path / "clicks.csv.mf.slatk.toml").write_text("k = 3\n")
    assert preset(str(tmp_path / "clicks.csv"), "mf", "slatk").get("k") != 3


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "does not exist"), (b"k = ", "cannot be read"), (b"\xff", "cannot be read")],
    ids=["missing", "not toml", "not utf-8"],
)
def test_a_config_file_that_cannot_be_read_is_named(tmp_path, content, message):
    if content is not None:
        (tmp_path / "run.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"run\.toml {message}"):
        assemble(file=tmp_path / "run.toml")


class Thing:
    def __init__(self, n_queries: int, needed: float, *, dim: int = 4, kind: str | None = None) -> None: ...


def test_completing_spells_out_the_defaults():
    found = complete("loss", Thing, {"needed": 2}, ["n_queries"])
    assert found == {"needed": 2.0, "dim": 4, "kind": None}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"needed": 1, "size": 3}, r"loss\.size is not a setting; accepted here: needed, dim, kind"),
        ({"needed": 1, "n_queries": 3}, r"loss\.n_queries is not a setting"),
        ({}, r"loss\.needed must be given"),
        ({"needed": "x"}, r"loss\.needed: input should be a valid number.*, got 'x'"),
    ],
)
def test_completing_refuses_what_the_constructor_does_not_take(given, message):
    with pytest.raises(ConfigError, match=message):
        complete("loss", Thing, given, ["n_queries"])


@pytest.mark.parametrize("file", SHIPPED)
def test_every_shipped_config_builds_and_is_named_for_what_it_holds(file):
    """<dataset>.<model>.<loss>.toml, <dataset>.<model>.toml for a model that has no loss, <dataset>.toml for all.

    In place of the dataset: "default" for any data, or a task for any data of that task.
    """
    owner, *names = file.removesuffix(".toml").split(".")
    model, *loss = names or ["mf", "softmax"]
    task = owner if owner in REGISTRIES else "interactions"
    assert owner in (*DATASETS, *REGISTRIES, *(["default"] if names else []))
    kinds = REGISTRIES[task]
    assert model in kinds.models
    assert kinds.models[model].is_closed_form if not loss else loss[0] in kinds.losses
    config = assemble(task=task, data=owner, model=model, loss=loss[0] if loss else None)
    values = tomllib.loads((FOLDER / file).read_text(encoding="utf-8"))
    assembled = config.model_dump(mode="json")
    assert merged(assembled, values) == assembled  # every setting of the file is in force
    resolved = resolve(config)
    assert resolve(make_config(tomllib.loads(to_toml(resolved)))) == resolved


def test_negatives_chosen_by_hand_take_the_place_of_the_shipped_number_and_scale():
    assert assemble(loss="gbce", data="mine.csv").negatives.n == 64
    changed = assemble(loss="gbce", data="mine.csv", more={"negatives": {"kind": "catalogue"}})
    assert (changed.negatives.kind, changed.negatives.n) == ("catalogue", None)
    shipped = assemble(data="movielens-100k", loss="slatk")
    assert shipped.negatives.effective_n is not None
    drawn = assemble(data="movielens-100k", loss="slatk", more={"negatives": {"kind": "shared", "n": 5000}})
    assert (drawn.negatives.n, drawn.negatives.effective_n) == (5000, None)
    assert assemble(data="movielens-100k", loss="slatk", more={"train": {"epochs": 3}}).negatives == shipped.negatives
