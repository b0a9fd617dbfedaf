"""Plans: what they hold, what is refused, and which settings a case gets."""

from __future__ import annotations

import pytest

from benches import PLAN, plan_of
from topshelf.bench.cells import cells
from topshelf.bench.plan import (
    cases,
    known,
    metrics_of,
    narrowed,
    parse_plan,
    ranges_of,
    read_plan,
    shipped_plans,
    values_of,
)
from topshelf.errors import ConfigError, TopshelfError
from topshelf.losses import LOSSES

HEAD = 'title = "T"\nmetrics = ["ndcg@5", "ndcg@10"]\nseeds = [0]\n'
BODY = """
data = [{ label = "A", source = "synthetic" }]
method = [{ label = "one", settings = { loss = { name = "softmax" } } }]
"""


def refused(text):
    with pytest.raises(ConfigError) as error:
        parse_plan(text, "mine.toml")
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title = 3\n" + HEAD[12:] + BODY, "title: input should be a valid string, got 3"),
        (HEAD + "colour = 'red'\n" + BODY, "colour is not a setting"),
        (HEAD + "k = 0\n" + BODY, "k: input should be greater than or equal to 1, got 0"),
        (HEAD + "minutes = -1\n" + BODY, "minutes: input should be greater than 0, got -1"),
        (HEAD + "choose = 'best'\n" + BODY, "choose: input should be 'published', 'shipped' or 'tuned', got 'best'"),
        (HEAD.replace("[0]", "[]") + BODY, "seeds: tuple should have at least 1 item"),
        (HEAD.replace("[0]", "[0, 1, 0]") + BODY, "seeds must differ, got 0 twice"),
        (HEAD.replace('"ndcg@10"', '"ndcg@5"') + BODY, "metrics must differ, got 'ndcg@5' twice"),
        (HEAD + BODY.replace("data = [", "data = [{ label = 'A', source = 'x' },"), "data must differ, got 'A' twice"),
        (HEAD + BODY.replace("method = [", "method = [{ label = 'one' },"), "method must differ, got 'one' twice"),
        (HEAD + BODY + "[[published]]\nmethod = 'two'", "published names method 'two', which must be one of one"),
        (HEAD + BODY + "[[published]]\ndata = 'B'", "published names data 'B', which must be one of A"),
        (HEAD + BODY + "[[published]]\nx = 0.5", "published names x 0.5, which must be one of the values of vary"),
        (HEAD + BODY + "[[published]]\nk = 7", "published names k 7, which must be the K of a metric, [5, 10]"),
        (HEAD + "ours = 'two'\n" + BODY, "ours must be the label of a method, got 'two'"),
        (HEAD + BODY.replace('"one",', '"one", group = "G",'), "method 'one' is of group 'G', which is no group"),
        (
            HEAD.replace('"ndcg@10"', '"auc"') + BODY.replace('"one",', '"one", at_k = true,'),
            "method 'one' with at_k needs metrics at a K, got ('ndcg@5', 'auc')",
        ),
        (HEAD + BODY + "[vary]\nsetting = 'data.noise'\nvalues = [0.1]", "vary.label must be given"),
        (HEAD + BODY + "[vary]\nsetting = 'a'\nlabel = 'a'\nvalues = []", "vary.values: tuple should have at least 1"),
        (HEAD + BODY + "[vary]\nsetting = 'a'\nlabel = 'a'\nvalues = [1, 1]", "vary.values must differ, got 1 twice"),
        (HEAD, "data must be given"),
        (HEAD + "seds = [1]\n" + BODY, "seds is not a setting; accepted here: title, source,"),
        (HEAD + "seds = [1]\n" + BODY, "; did you mean seeds?"),
        (HEAD + BODY.replace("source =", "sorce ="), "data.0.sorce is not a setting; accepted here: source, label,"),
        (HEAD.replace('"ndcg@10"', '"ndgc@10"') + BODY, "auc, got 'ndgc@10'; did you mean ndcg@10?"),
        (HEAD.replace('"ndcg@10"', '"ndcg"') + BODY, "metrics of task interactions must be among ndcg@K, "),
        (HEAD + 'task = "links"\n' + BODY, "metrics of task links must be among hits@K, mrr, got 'ndcg@5'"),
        ("title = ", "the plan mine.toml is not TOML: "),
        ("title = " + "[" * 5000 + "]" * 5000, "the plan mine.toml is not TOML: its values are nested"),
        (HEAD + BODY + "[settings]\n" + "a." * 900 + "b = 1", "the plan mine.toml is not TOML: its values are nested"),
    ],
)
def test_a_wrong_plan_is_refused_with_the_key_the_rule_and_the_value(text, message):
    shown = refused(text)
    assert shown.startswith("the plan mine.toml is ")
    assert message in shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + BODY.replace('"softmax"', '"softmaxx"'), "A, one: loss.name must be one of"),
        (HEAD + BODY + "[vary]\nsetting = 'data.noize'\nlabel = 'n'\nvalues = [0.1]", "A, one, 0.1: "),
        (
            HEAD + "settings = { evaluate = { cutoffs = [5] } }\n" + BODY,
            "evaluate.cutoffs must have the K of every met",
        ),
        (HEAD + "protocols = ['papre']\n" + BODY, "protocols must be one of standard, paper, got 'papre'"),
        (HEAD + "task = 'rankings'\n" + BODY, "task"),
        (
            HEAD + "choose = 'published'\n" + BODY + "[[published]]\noptimum = [1, 2]",
            "the optimum of A, one has 2 values, and its method names 0 hyperparameters",
        ),
    ],
)
def test_settings_that_no_cell_can_have_are_refused_before_any_is_run(text, message):
    with pytest.raises(TopshelfError) as error:
        cells(parse_plan(text, "mine.toml"))
    assert message in str(error.value)


GRID = """
title = "Grid"
metrics = ["ndcg@5", "recall@5", "ndcg@10"]
k = 20
seeds = [3, 4]
settings = { train = { epochs = 1, patience = 1, batch_size = 1 } }
published_settings = { train = { learning_rate = 0.5 } }
data = [{ label = "A", source = "a" }, { label = "B", source = "b", settings = { train = { epochs = 2 } } }]
method = [
  { label = "plain", hyperparameters = ["loss.tau", "train.weight_decay"], settings = { train = { epochs = 4 } } },
  { label = "each", at_k = true },
  { label = "EASE", group = "own", settings = { model = { name = "ease" } } },
]
vary = { setting = "data.noise", label = "noise", values = [0.0, 0.5] }
published = [
  { method = "plain", optimum = [0.1, 0.01], values = { "ndcg@5" = 0.2, "ndcg@10" = 0.3, "auc" = 0.9 } },
  { method = "plain", data = "B", x = 0.5, optimum = [0.4], settings = { model = { init = "xavier" } } },
  { method = "each", values = { "ndcg@5" = 0.5, "ndcg@10" = 0.6 } },
  { method = "each", k = 10, settings = { loss = { tau = 0.7 } } },
]

[[group]]
label = "G"
settings = { model = { name = "mf" }, train = { epochs = 3, patience = 3 } }
published = { model = { init = "normal" } }

[[group]]
label = "own"
own = true
"""


@pytest.fixture(scope="module")
def grid():
    return parse_plan(GRID, "grid")


def one(plan, name):
    return next(case for case in cases(plan) if case.name == name)


def test_the_grid_has_every_place_once_in_order(grid):
    names = [case.name for case in cases(grid)]
    of_a = ["A, G, plain, 0", "A, G, plain, 0.5"]
    of_a += [f"A, G, each, {x}, K = {k}" for x in ("0", "0.5") for k in (5, 10)]
    of_a += ["A, own, EASE, 0", "A, own, EASE, 0.5"]
    assert names == of_a + [name.replace("A,", "B,", 1) for name in of_a]


def test_settings_are_merged_from_the_plan_to_the_method(grid):
    values = values_of(grid, one(grid, "B, G, plain, 0"))
    assert values["train"] == {"epochs": 4, "patience": 3, "batch_size": 1}
    assert values_of(grid, one(grid, "B, G, each, 0, K = 5"))["train"]["epochs"] == 3
    assert values_of(grid, one(grid, "B, own, EASE, 0"))["train"]["epochs"] == 2
    assert values["data"] == {"noise": 0.0, "source": "b"}
    assert values["evaluate"] == {"cutoffs": [5, 10]}
    assert (values["task"], values["k"]) == ("interactions", 20)
    assert values_of(grid, one(grid, "A, G, each, 0, K = 10"))["k"] == 10


def test_published_settings_and_optima_are_used_by_their_choice_alone(grid):
    case = one(grid, "B, G, plain, 0.5")
    assert "loss" not in values_of(grid, case)
    chosen = narrowed(grid, choose="published")
    values = values_of(chosen, case)
    assert values["train"]["learning_rate"] == 0.5
    assert values["model"] == {"name": "mf", "init": "xavier"}
    assert values["loss"] == {"tau": 0.4}
    assert "weight_decay" not in values["train"]  # a shorter optimum
    assert values_of(chosen, one(grid, "B, G, plain, 0"))["train"]["weight_decay"] == 0.01
    assert values_of(chosen, one(grid, "A, G, each, 0, K = 10"))["loss"] == {"tau": 0.7}
    assert "loss" not in values_of(chosen, one(grid, "A, G, each, 0, K = 5"))


def test_a_model_of_one_k_reports_the_metrics_of_that_k(grid):
    case = one(grid, "A, G, each, 0, K = 10")
    assert metrics_of(grid, case) == ["ndcg@10"]
    assert known(grid, case).values == {"ndcg@10": 0.6}
    assert metrics_of(grid, one(grid, "A, G, plain, 0")) == ["ndcg@5", "recall@5", "ndcg@10"]
    assert known(grid, one(grid, "A, G, plain, 0")).values == {"ndcg@5": 0.2, "ndcg@10": 0.3}


def test_a_part_of_a_plan(grid):
    part = narrowed(grid, data=["B"], methods=["plain"], seeds=[9], trials=2, minutes=0.5)
    assert [case.name for case in cases(part)] == ["B, G, plain, 0", "B, G, plain, 0.5"]
    assert (part.seeds, part.trials, part.minutes) == ((9,), 2, 0.5)
    assert {entry.method for entry in part.published} == {"plain"}
    assert next(case.name for case in cases(narrowed(grid, groups=["own"], data=["A"]))) == "A, own, EASE, 0"
    assert narrowed(grid) == grid
    ours = plan_of(PLAN, "synthetic")
    assert narrowed(ours, methods=["popularity"]).ours is None
    assert narrowed(ours, methods=["EASE"]).ours == "EASE"


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"data": ["C"]}, r"--data must be a label of the plan \(A, B\), got 'C'"),
        ({"methods": ["plane"]}, r"--method must be a label .*got 'plane'; did you mean plain"),
        ({"groups": ["G"], "methods": ["EASE"]}, "the plan has no cell with --group G, --method EASE"),
        ({"groups": ["own"], "methods": ["plain"]}, "the plan has no cell with --group own, --method plain"),
        ({"trials": 0}, "trials: input should be greater than or equal to 1, got 0"),
        ({"minutes": 0}, "minutes: input should be greater than 0, got 0"),
        ({"seeds": [1, 1]}, "seeds must differ, got 1 twice"),
    ],
)
def test_a_part_that_is_none_is_refused(grid, limits, message):
    with pytest.raises(ConfigError, match=message):
        narrowed(grid, **limits)


@pytest.mark.parametrize("name", shipped_plans())
def test_every_shipped_plan_parses_and_its_settings_are_settings(name):
    found, plan = read_plan(name)
    assert found == name
    some = cells(narrowed(plan, seeds=[0]))
    assert len(some) == len(list(cases(plan)))
    for choice in {"published", "shipped"} - {plan.choose}:
        assert len(cells(narrowed(plan, seeds=[0], choose=choice))) == len(some)


def test_the_plan_of_every_loss_is_complete():
    _, plan = read_plan("every-loss")
    named = [method.settings["loss"]["name"] for method in plan.method if method.group is None]
    assert named == list(LOSSES)
    assert named == [method.label for method in plan.method if method.group is None]


def test_the_ranges_of_a_group_replace_add_to_and_take_away_those_of_its_methods():
    text = (
        HEAD
        + """
data = [{ label = "A", source = "synthetic" }]
group = [{ label = "G", ranges = { a = [], b = [4], c = [5] } }, { label = "H" }]
method = [{ label = "one", ranges = { a = [1], b = [2, 3] } }]
"""
    )
    plan = parse_plan(text, "mine.toml")
    assert ranges_of(one(plan, "A, G, one")) == {"b": [4], "c": [5]}
    assert ranges_of(one(plan, "A, H, one")) == {"a": [1], "b": [2, 3]}


def test_a_plan_is_found_by_its_name_or_its_path(tmp_path):
    path = tmp_path / "my-plan.toml"
    path.write_text(PLAN)
    assert read_plan(path)[0] == "my-plan"
    with pytest.raises(ConfigError, match=r"'quik' is neither a plan .* nor a TOML file; did you mean quick"):
        read_plan("quik")
    with pytest.raises(ConfigError, match="must be named with letters"):
        read_plan(path.rename(tmp_path / "my plan.toml"))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"bytes\.toml cannot be read"):
        read_plan(tmp_path / "bytes.toml")
