"""The shipped plans hold the numbers and the optima that were published, all of them."""

from __future__ import annotations

import pytest

from paper import by_backbone, by_loss, paper_text
from topshelf.bench.plan import cases, known, read_plan, shipped_plans, values_of

DATA = ("health", "electronic", "gowalla", "book")
METRICS = ("recall@20", "ndcg@20")
KS = (5, 10, 20, 50, 75, 100)


@pytest.fixture(scope="module")
def paper():
    return paper_text()


def published(name):
    """Every case of a plan that something was published of, with it."""
    plan = read_plan(name)[1]
    return plan, {(case.group.label if case.group else "", case.method.label, case.k): case for case in cases(plan)}


def of_table2(paper, data):
    at = 2 * DATA.index(data)
    return {key: values[at : at + 2] for key, values in by_backbone(paper, "tab:slatk_versus_sota").items()}


def test_the_parser_reads_every_number_of_the_tables(paper):
    table2 = by_backbone(paper, "tab:slatk_versus_sota")
    assert len(table2) == 27
    assert sum(map(len, table2.values())) == 216
    assert table2["XSimGCL", "SL@20"] == [0.1753, 0.1332, 0.0869, 0.0571, 0.2095, 0.1717, 0.1624, 0.1277]
    assert {len(values) for values in by_loss(paper, "tab:slatk_versus_sota_mf").values()} == {12}
    assert {len(values) for values in by_loss(paper, "tab:consistency_atk").values()} == {12}
    sizes = [len(by_backbone(paper, f"tab:hyperparameters-{data}")) for data in DATA]
    assert sizes == [32, 32, 27, 27]


@pytest.mark.parametrize("data", DATA)
def test_table_2_is_whole_with_its_optima(paper, data):
    plan, found = published(f"table2-{data}")
    optima = by_backbone(paper, f"tab:hyperparameters-{data}")
    for (backbone, loss), values in of_table2(paper, data).items():
        case = found.pop((backbone, loss, None))
        assert known(plan, case).values == dict(zip(METRICS, values, strict=True)), case.name
        assert list(known(plan, case).optimum) == optima[backbone, loss], case.name
    assert all(not known(plan, case).values for case in found.values())
    assert all(case.group.own for case in found.values())


@pytest.mark.parametrize("data", ["health", "electronic"])
def test_table_3_is_whole_with_the_optimum_of_every_k(paper, data):
    plan, found = published(f"table3-{data}")
    at = 6 * DATA.index(data)
    table = {loss: values[at : at + 6] for loss, values in by_loss(paper, "tab:slatk_versus_sota_mf").items()}
    optima = by_backbone(paper, f"tab:hyperparameters-{data}")
    for (_, loss, k), case in found.items():
        expected = dict(zip((f"ndcg@{k}" for k in KS), table[loss], strict=True))
        expected = {name: value for name, value in expected.items() if k is None or name == f"ndcg@{k}"}
        assert known(plan, case).values == expected, case.name
        name = {"SONG@K": "SONG@20", "SONG": "SONG@20", "SL@K": f"SL@{k}"}.get(loss, loss)  # of SONG, one is printed
        optimum = optima["MF", name][: len(case.method.hyperparameters)]  # eta is of SONG@K alone
        assert list(known(plan, case).optimum) == optimum, case.name
    assert {loss for _, loss, _ in found} == set(table)


@pytest.mark.parametrize("data", ["health", "electronic"])
def test_table_4_is_whole_with_the_optimum_of_every_k(paper, data):
    plan, found = published(f"table4-{data}")
    at = 6 * DATA.index(data)
    table = {loss: values[at : at + 6] for loss, values in by_loss(paper, "tab:consistency_atk").items()}
    optima = by_backbone(paper, f"tab:hyperparameters-{data}")
    for (_, loss, _), case in found.items():
        assert list(known(plan, case).values.values()) == table[loss], case.name
        assert list(known(plan, case).values) == [f"ndcg@{k}" for k in KS]
        assert list(known(plan, case).optimum) == optima["MF", loss], case.name
        if loss != "SL":
            assert values_of(plan, case)["k"] == int(loss.partition("@")[2])
    assert {loss for _, loss, _ in found} == set(table)


@pytest.mark.parametrize(
    "name", [name for name in shipped_plans() if name.startswith(("noise", "figure7", "figures", "quick"))]
)
def test_other_plans_use_the_same_optima_and_figures(paper, name):
    plan, found = published(name)
    data = "health" if name == "quick" else name.partition("-")[2]
    optima, table = by_backbone(paper, f"tab:hyperparameters-{data}"), of_table2(paper, data)
    for (group, loss, _), case in found.items():
        if case.group and case.group.own:
            continue
        assert list(known(plan, case).optimum) == optima[group, loss]
        assert known(plan, case).values in ({}, dict(zip(METRICS, table[group, loss], strict=True)))
