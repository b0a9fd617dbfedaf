"""Benchmarks answer --help, share their arguments and result file, and measure what they say."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import topshelf
from benchmarks import harness
from benchmarks.quality import links
from benchmarks.speed import before_after, large_data, latency, quality_time, quality_time_methods
from benchmarks.studies import approximate, bfloat16_tables, same_numbers
from topshelf import charts
from topshelf.losses import LOSSES, slatk_loss
from topshelf.models import MODELS
from topshelf.training.thresholding import ESTIMATORS

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(
    f"benchmarks.{file.parent.name}.{file.stem}"
    for file in (ROOT / "benchmarks").glob("*/*.py")
    if "__main__" in file.read_text()
)
RESULT = ROOT / "benchmarks" / "results" / "quality_time.json"
# One process for all of them: torch is imported once.
ASK = """
import contextlib, io, json, runpy, sys
answers = {}
for name in sys.argv[1:]:
    sys.argv = [name, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        except BaseException as ending:
            answers[name] = [said.getvalue(), repr(ending)]
json.dump(answers, sys.stdout)
"""


@pytest.fixture(scope="module")
def answers():
    command = [sys.executable, "-W", "ignore::RuntimeWarning:runpy", "-c", ASK, *SCRIPTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_benchmark_answers_help_and_has_quick_and_json(name, answers):
    said, ending = answers[name]
    assert ending == "SystemExit(0)"
    assert f"usage: python -m {name}" in said
    assert "--quick" in said
    assert "--json" in said
    assert f"python -m {name} " in said.partition("options:")[0].partition("\n\n")[2]  # the docstring's own line


def test_the_shared_module_imports_nothing_of_topshelf():
    code = "import sys, benchmarks.harness; assert not {'topshelf', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.fixture
def benchmark(tmp_path, monkeypatch):
    def of(*words, **how):
        monkeypatch.setattr(sys, "argv", ["name", *map(str, words)])
        made = harness.Benchmark("benchmarks.a.name", "words", data=("one", "two"), seeds=(0, 1), **how)
        made.parse()
        return made

    return of


def test_a_result_has_its_command_date_machine_data_and_seeds_and_keeps_the_rest_of_its_file(benchmark, tmp_path):
    file = tmp_path / "result.json"
    assert benchmark().held() == []
    benchmark().write(rows=[1])  # no file, nothing to write
    benchmark("--seeds", 3, "--json", file).write(rows=[{"a": 1}])
    file.write_text(json.dumps({**json.loads(file.read_text()), "earlier": ["kept"]}))
    again = benchmark("--data", "two", "--json", file)
    again.write(rows=[*again.held(), {"a": 2}], protocol="standard")
    result = json.loads(file.read_text())
    assert (result["earlier"], result["rows"]) == (["kept"], [{"a": 1}, {"a": 2}])
    assert result["command"] == "python -m benchmarks.a.name --data two"
    assert (result["data"], result["seeds"], result["protocol"]) == (["two"], [0, 1], "standard")
    assert result["date"] == harness.today()
    assert result["environment"]["packages"]["torch"]


def test_quick_overrides_what_was_given(benchmark):
    options = benchmark("--quick", "--data", "one", "two", quick={"data": ["two"], "seeds": [0]}).options
    assert (options.data, options.seeds) == (["two"], [0])


@pytest.mark.parametrize(
    "name",
    [
        *("quality.links", "quality.auto", "studies.blends", "studies.item_prior", "studies.safe_defaults"),
        *("studies.approximate", "studies.bfloat16_tables"),
    ],
)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--data", "nope"), "--data must be of: "), (("--quick", "--json", "{file}"), "--quick must have a new file")],
)
def test_a_wrong_name_or_a_quick_call_for_a_whole_file_is_refused(
    name, arguments, message, tmp_path, monkeypatch, capsys
):
    file = tmp_path / "whole.json"
    file.write_text("{}")
    monkeypatch.setattr(sys, "argv", [name, *(text.format(file=file) for text in arguments)])
    with pytest.raises(SystemExit):
        importlib.import_module(f"benchmarks.{name}").main()
    assert message in capsys.readouterr().err
    assert file.read_text() == "{}"


def test_runs_are_timed_in_turn_after_one_of_each():
    called, now = [], iter(range(100))
    runs = {label: (lambda label=label: called.append(label)) for label in "ab"}
    seconds = harness.interleaved(runs, 2, clock=lambda: float(next(now)))
    assert called == ["a", "b"] * 3
    assert seconds == {"a": [1.0, 1.0], "b": [1.0, 1.0]}


class Tree:
    """Answers as a worker does: each call takes the next of some seconds."""

    def __init__(self, name, asked, *seconds):
        self.name, self.asked, self.seconds = name, asked, iter(seconds)

    def ask(self, request):
        self.asked.append((self.name, request["calls"]))
        return next(self.seconds)


def test_two_trees_take_turns_and_a_round_is_one_ratio():
    asked, work = [], {"data": "food", "work": "EASE, fit"}
    trees = {"before": Tree("before", asked, 9.0, 1.0, 3.0, 4.0, 6.0), "after": Tree("after", asked, 8.0, *[5.5] * 4)}
    rounds = before_after.measure(trees, work, 9, least=20.0, most=0.0)  # no time for more than two rounds
    there, back = ["before", "after"], ["after", "before"]
    turns = [*there, *back, *there, *there, *back]
    assert asked == [(name, 1 if at < 2 else 3) for at, name in enumerate(turns)]
    assert rounds == [{"before": [1.0, 3.0], "after": [5.5, 5.5]}, {"before": [4.0, 6.0], "after": [5.5, 5.5]}]
    row = before_after.summary(work, [rounds])
    assert row["ratios"] == [[11 / 4, 11 / 10]]
    assert row["ratio"] == pytest.approx((11 / 4 + 11 / 10) / 2)
    assert row["seconds"] == {"before": 3.5, "after": 5.5}
    assert before_after.cells(row, 1.03)[2:] == ["3.5000", "5.5000", "1.925", "1.100 to 2.750", "slower"]


def test_a_tree_is_slower_only_where_the_whole_interval_is():
    generator = np.random.default_rng(0)
    noise = [generator.normal(1.0, 0.05, 30).tolist() for _ in range(3)]
    low, high = before_after.interval(noise)
    assert low < 1 < high
    assert high - low < 0.05
    assert before_after.verdict({"interval": [low, high]}, 1.03) == ""
    apart = before_after.interval([[1.0] * 9, [1.2] * 9])  # two starts that do not agree
    assert apart == [1.0, 1.2]
    assert before_after.verdict({"interval": [1.02, 1.2]}, 1.03) == ""
    assert before_after.verdict({"interval": [1.04, 1.2]}, 1.03) == "slower"
    assert before_after.verdict({"interval": [0.8, 0.9]}, 1.03) == "faster"


@pytest.mark.slow
def test_a_tree_against_itself_is_measured_by_two_processes(tmp_path):
    file, source = tmp_path / "result.json", str(ROOT / "src")
    command = [sys.executable, "-m", before_after.MODULE, "--before", source, "--after", source, "--json", str(file)]
    command += ["--data", "synthetic", "--work", before_after.EASE, before_after.EVALUATION, "--rounds", "2"]
    command += ["--starts", "2", "--least", "0", "--limit", "1e9"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    result = json.loads(file.read_text())
    assert [row["work"] for row in result["rows"]] == [before_after.EASE, before_after.EVALUATION]
    for row in result["rows"]:
        assert [len(own) for own in row["ratios"]] == [2, 2]
        assert 0 < row["interval"][0] <= row["ratio"] <= row["interval"][1]


@pytest.mark.parametrize("model", latency.MODELS)
def test_a_run_folder_is_made_and_answers(model, tmp_path):
    sizes = {"users": 300, "items": 200, "interactions": 3_000}
    latency.make(tmp_path / "run", model, sizes)
    result = latency.measure(tmp_path / "run", model, sizes, 2, 1e9)
    new = [latency.NEW, latency.BY_ID] if "history" in MODELS[model].takes else []
    assert list(result["calls"]) == [latency.KNOWN, *new, latency.SIMILAR]
    assert all(0 < times["p50"] <= times["p99"] for times in result["calls"].values())
    assert len(latency.lines("after", model, result)) == len(result["calls"])


def test_combinations_that_differ_are_named_and_new_ones_are_not_compared():
    before = {"same": ["1", "2"], "gone": ["1"], "moved": ["1", "2"], "no": [same_numbers.REFUSED, "ConfigError"]}
    after = {"same": ["1", "2"], "new": ["1"], "moved": ["1", "3"], "no": [same_numbers.REFUSED, "ConfigError"]}
    assert same_numbers.compared(before, after) == {
        "compared": 3,
        "equal": 2,
        "refused_by_both": ["no"],
        "different": ["moved"],
        "only_before": ["gone"],
        "only_after": ["new"],
    }


def test_every_model_loss_and_estimator_is_among_the_combinations():
    names = [name for name, _ in same_numbers.combinations()]
    assert len(set(names)) == len(names)
    assert {name.split("/")[1] for name in names if name.startswith("model/")} == set(MODELS)
    assert {name.split("/")[1] for name in names if name.startswith("loss/")} == set(LOSSES)
    assert set(same_numbers.ESTIMATORS) <= set(ESTIMATORS)


@pytest.mark.slow
def test_a_tree_trains_to_the_same_numbers_in_two_processes(tmp_path):
    file, source = tmp_path / "result.json", str(ROOT / "src")
    command = [sys.executable, "-m", same_numbers.MODULE, "--before", source, "--after", source, "--json", str(file)]
    subprocess.run([*command, "--only", "refit/all"], cwd=ROOT, check=True, capture_output=True, timeout=300)
    result = json.loads(file.read_text())
    assert (result["compared"], result["equal"], result["refused_by_both"]) == (2, 2, [])


def test_a_worker_refuses_a_path_that_is_no_source_tree(tmp_path):
    with pytest.raises(SystemExit, match="topshelf must come from"):
        harness.check_tree(tmp_path)
    harness.check_tree(Path(topshelf.__file__).parents[1])  # the tree, or where a wheel is installed


def test_the_data_of_the_latency_benchmark_have_the_sizes_that_it_says():
    sizes = {"users": 300, "items": 200, "interactions": 2_000}
    matrix = latency.interactions(sizes)
    assert matrix.shape == (300, 200)
    assert matrix.nnz == 2_000
    assert matrix.data.max() == 1
    assert (matrix.getnnz(axis=1) > 0).all()


def test_the_first_answer_is_not_among_the_percentiles_and_short_lists_are_refused(monkeypatch):
    class Answer:
        height = latency.K

    now = iter([0.0, 5.0, *(value for at in range(4) for value in (10.0, 10.0 + at))])
    monkeypatch.setattr(latency.time, "perf_counter", lambda: next(now))
    times = latency.percentiles(lambda at: Answer, 4, 1e9)
    assert (times["first"], times["p50"], times["calls"]) == (5.0, 1.5, 4)
    monkeypatch.undo()
    Answer.height = 3
    with pytest.raises(SystemExit, match="20 rows, got 3"):
        latency.percentiles(lambda at: Answer, 1, 1e9)


def test_the_plain_reference_is_slatk():
    torch.manual_seed(0)
    users, items, threshold = torch.randn(5, 8), torch.randn(30, 8), torch.rand(5)
    user, item, negative = torch.tensor([0, 3, 3, 4]), torch.tensor([7, 1, 29, 0]), torch.randint(30, (4, 11))
    value = quality_time_methods.plain_loss(users, items, user, item, negative, threshold, tau=0.2, tau_weight=2.5)
    u, i = F.normalize(users, dim=1), F.normalize(items, dim=1)
    scores = u @ i.T
    expected = slatk_loss(
        scores[user, item],
        scores[user].gather(1, negative),
        threshold=threshold[user],
        tau=0.2,
        tau_weight=2.5,
    ).mean()
    assert_close(value, expected)


def test_the_clock_stands_while_it_is_paused(monkeypatch):
    now = 100.0
    monkeypatch.setattr(quality_time_methods.time, "perf_counter", lambda: now)
    clock = quality_time_methods.Clock()
    now += 3
    with clock.paused() as seconds:
        assert seconds == 3
        now += 50
    now += 1
    assert clock.seconds == 4


def test_reached_is_the_first_point_at_the_target_and_never_extrapolated():
    curve = [
        {"seconds": 1.0, "epoch": 1, "test": 0.1, "valid": 0.05},
        {"seconds": 2.0, "epoch": 2, "test": 0.3, "valid": 0.07},
        {"seconds": 3.0, "epoch": 3, "test": 0.2, "valid": 0.07},
    ]
    run = {"seconds": 3.5, "curve": curve}
    assert quality_time.seconds_to(run, 0.2) == 2.0
    assert quality_time.best_point(run)["test"] == 0.3
    assert quality_time.reached([run], 0.4) == "not reached in 3.5 s (3 epochs)"
    assert quality_time.reached([run, {"seconds": 1.5, "curve": curve[:1]}], 0.2) == "2 (1 of 2 seeds)"


def test_the_quality_time_page_is_the_committed_result():
    page = (ROOT / "docs" / "quality-time.md").read_text()
    assert quality_time.table(json.loads(RESULT.read_text())["results"]) in page
    assert all((ROOT / "docs" / name).exists() for name in re.findall(r"\]\((images/[^)]+)\)", page))


def test_the_baselines_ran_with_the_winners_of_their_searches():
    result = json.loads(RESULT.read_text())
    for data, methods in result["searches"].items():
        for method, search in methods.items():
            assert search["best"] == max(search["trials"], key=lambda row: row["valid"])["settings"]
            for run in result["results"][data][method]["runs"]:
                assert search["best"].items() <= run["settings"].items()


def test_the_quality_time_plot_is_drawn_with_the_colours_of_every_plot(tmp_path):
    pytest.importorskip("matplotlib")
    results = json.loads(RESULT.read_text())["results"]
    drawing = quality_time.draw(results, tmp_path / "new").read_text()
    assert set(quality_time.COLOURS.values()) <= {*charts.COLOURS, charts.GREY}
    assert all(colour in drawing for colour in quality_time.COLOURS.values())


def test_the_rows_of_links_have_a_table_and_paired_tests():
    runs = [
        {
            "data": "cora",
            "label": label,
            "seed": seed,
            "hits@20": 0.5,
            "mrr": rank / 10,
            "doubled_ranks": [2, 2 * rank, 41],
        }
        for label, rank in (("GCN SL", 4), ("GCN SL@20", 2))
        for seed in (0, 1)
    ]
    shown = links.table_of(runs, "cora")
    assert "| GCN SL@20 | 0.5000 ± 0.0000 | 0.2000 ± 0.0000 | 0.4839 | 0.1812 |" in shown
    found = links.paired(runs, "cora", "GCN SL@20", "GCN SL")
    assert found["mrr"]["difference"] == pytest.approx((1 / 2 - 1 / 4) / 3)
    assert found["hits@20"]["difference"] == 0
    assert links.paired(runs, "citeseer", "GCN SL@20", "GCN SL") == {}


def test_every_loss_of_links_has_a_grid_of_one_size():
    assert {len(links.METHODS[label].points()) for label in ("GCN BCE", "GCN SL", "GCN SL@20")} == {4}
    assert links.nested({"train.learning_rate": 1, "loss.tau": 2}) == {
        "train": {"learning_rate": 1},
        "loss": {"tau": 2},
    }


def test_the_page_of_links_has_the_tables_of_its_result_file():
    runs = harness.held(ROOT / "benchmarks" / "results" / "links.json", "runs")
    text = (ROOT / "docs" / "links.md").read_text(encoding="utf-8")
    assert text.partition(links.BEGIN)[2].partition(links.END)[0].strip() == links.page(runs)


def test_the_page_of_large_data_has_the_figures_of_its_result_file():
    content = json.loads((ROOT / "benchmarks" / "results" / "large_data.json").read_text())
    assert large_data.figures(content) in (ROOT / "docs" / "large-data.md").read_text()
    ingested = [row for row in content["rows"] if row["stage"] == "ingest"]
    assert all(row["peak_gib"] < 8 for row in ingested)


def test_growth_is_the_slope_on_logs():
    sizes = (1000, 10_000, 100_000)
    memory = [{"rows": n, "peak_gib": 1 + n / 1e6, "library_gib": 1.0} for n in sizes]
    rows = [{"stage": "ingest", "seconds": one["rows"] ** 1.5, "cpu_seconds": one["rows"], **one} for one in memory]
    slopes = {"seconds": 1.5, "cpu_seconds": 1.0, "memory": 1.0}
    assert large_data.exponents(rows)["ingest"] == pytest.approx(slopes, abs=1e-2)
    assert "train" not in large_data.exponents(rows)
    # Lists count one by one: with a tenth of the users for ten times the rows, the seconds per list grow like both.
    lists = [{**one, "stage": "recommend", "users": 10**6 / one["rows"]} for one in rows]
    assert large_data.exponents(lists)["recommend"]["cpu_seconds"] == pytest.approx(2.0, abs=1e-2)


def test_approximations_are_compared_at_the_rate_that_validation_chooses():
    def row(seed, negatives, *runs):
        runs = [{"rate": rate, "valid": valid, "test": test} for rate, valid, test in runs]
        return {"data": "food", "seed": seed, "loss": "SL", "negatives": negatives, "runs": runs}

    rows = [
        row(0, approximate.EXACT, (1.0, 0.5, 0.40), (0.3, 0.4, 0.90)),
        row(1, approximate.EXACT, (1.0, 0.5, 0.50)),
        row(0, "in batch", (1.0, 0.1, 0.90), (0.3, 0.2, 0.38)),
        row(1, "in batch", (1.0, 0.3, 0.45)),
    ]
    exact, drawn = approximate.quality_table(rows).splitlines()[2:]
    assert exact == "| food | exact catalogue | 0.4500 |  | - | - | 2 |"
    assert drawn == "| food | in batch | 0.4150 | -7.5% | - | - | 2 |"


def test_the_exponent_of_a_cost_is_the_slope_of_the_logarithms():
    rows = [
        {
            "items": n,
            "negatives": "exact catalogue",
            "dim": 16,
            "ms": n / 100,
            "step_gib": 0.25,
            "resident_gib": n / 1e4,
        }
        for n in (1000, 10_000)
    ]
    (exact,) = approximate.cost_table(rows).splitlines()[2:]
    assert exact == "| exact catalogue | 10.0 / 0.35 | 100.0 / 1.25 | 1.00 |"


def test_stochastic_rounding_keeps_the_mean_and_what_needs_no_rounding():
    generator = torch.Generator().manual_seed(0)
    values = torch.tensor([1.001, -0.3001, 1e-6]).repeat(20_000, 1)
    rounded = bfloat16_tables.stochastic(values, generator)
    assert torch.equal(rounded, rounded.bfloat16().float())
    assert torch.equal(bfloat16_tables.stochastic(rounded, generator), rounded)
    torch.testing.assert_close(rounded.mean(0), values[0], rtol=1e-4, atol=0)
    assert len(rounded[:, 0].unique()) == 2


def test_hard_negatives_are_measured_only_where_some_are_chosen():
    hard = {"kind": "mixed", "n_hard": 50, "pool": 1000}
    assert approximate.chooses(hard, 0.4)
    assert not approximate.chooses({**hard, "pool": 100}, 0.97)  # 3 left of the pool, and all of them taken
    assert approximate.chooses({"kind": "in_batch"}, 0.97)
