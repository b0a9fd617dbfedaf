"""From a config to the objects it names."""

from __future__ import annotations

import inspect

import pytest
import torch

from topshelf.config import assemble, make_config, merged
from topshelf.data import Dataset, generate, make_split
from topshelf.errors import ConfigError
from topshelf.losses import BPR, LOSSES, SLatK, SoftmaxLoss
from topshelf.models import EASE, MF, MODELS
from topshelf.negatives import Catalogue, InBatch, PerQuery, Shared
from topshelf.queries import Context
from topshelf.ragged import ragged_from_pairs
from topshelf.registry import GIVEN
from topshelf.training import fit
from topshelf.training.build import build_loss, build_model, build_negatives, build_objective, components, resolve
from topshelf.training.thresholding import Regression


def config(**values):
    return resolve(make_config(values))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_resolved_config_spells_out_every_setting_and_stays_as_it_is(model, loss):
    resolved = config(model={"name": model}, loss={"name": loss})
    for component, cls in ((resolved.model, MODELS[model]), (resolved.loss, LOSSES[loss])):
        parameters = inspect.signature(cls.__init__).parameters
        unset = {name for name, parameter in parameters.items() if parameter.default is None}  # TOML has no None
        assert set(component.settings) == set(parameters) - set(GIVEN) - unset
    assert resolve(resolved) == resolved


def test_k_goes_to_the_loss_unless_it_has_its_own():
    assert config(k=7).loss.settings["k"] == 7
    assert config(k=7, loss={"name": "slatk", "k": 3}).loss.settings["k"] == 3
    assert "k" not in config(k=7, loss={"name": "bpr"}).loss.settings


def test_the_loss_chooses_the_score_unless_somebody_did():
    assert config(loss={"name": "softmax"}).model.settings["score"] == "cosine"
    assert config(loss={"name": "bpr"}).model.settings["score"] == "dot"
    assert config(loss={"name": "bpr"}, model={"name": "mf", "score": "cosine"}).model.settings["score"] == "cosine"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"loss": {"name": "directau"}, "model": {"name": "mf", "score": "dot"}},
            r"set model\.score = 'cosine', got 'dot'",
        ),
        (
            {"loss": {"name": "bpr"}, "negatives": {"effective_n": 5}},
            r"negatives\.effective_n does not go with loss bpr.*5",
        ),
        ({"loss": {"name": "lambdaloss"}, "train": {"order": "pair"}}, r"set train\.order = 'query', got 'pair'"),
        ({"loss": {"name": "sl"}}, r"loss\.name must be one of slatk, .*, got 'sl'|loss\.name must be one of .*'sl'"),
        ({"model": {"name": "history", "drop": 0.95}}, r"drop must be <= 0\.9, got 0\.95"),
        ({"model": {"name": "ease", "l2": float("inf")}}, r"l2 must be finite, got inf"),
        ({"model": {"name": "mff"}}, r"model\.name must be one of mf, .*ease, .*popularity.*, got 'mff'"),
        ({"loss": {"name": "slatk", "temperature": 1}}, r"loss\.temperature is not a setting; accepted here: k, tau"),
        ({"loss": {"name": "slatk", "reduction": "sum"}}, r"loss\.reduction is not a setting"),
        ({"model": {"name": "mf", "n_items": 3}}, r"model\.n_items is not a setting; accepted here: dim, score, init"),
        ({"model": {"name": "popularity", "dim": 3}}, r"model\.dim is not a setting; accepted here: none"),
        ({"model": {"name": "mf", "dim": "wide"}}, r"model\.dim: .*got 'wide'"),
    ],
)
def test_unknown_names_and_settings_are_refused_before_anything_is_built(values, message):
    with pytest.raises(ConfigError, match=message):
        config(**values)


def test_settings_reach_what_is_built():
    resolved = config(k=4, model={"name": "mf", "dim": 8}, loss={"name": "slatk", "tau": 0.5, "distance": "sigmoid"})
    model, loss = build_model(resolved, 3, 5), build_loss(resolved, 3, 5, 7)
    assert isinstance(model, MF)
    assert (model.query_vectors.shape, model.item_vectors.shape) == ((3, 8), (5, 8))
    assert isinstance(loss, SLatK)
    assert (loss.k, loss.tau, loss.distance, loss.threshold.shape) == (4, 0.5, "sigmoid", (3,))
    assert isinstance(build_model(config(model={"name": "ease", "l2": 2}), 3, 5), EASE)
    assert isinstance(build_loss(config(loss={"name": "bpr"}), 3, 5, 7), BPR)


@pytest.mark.parametrize(
    ("settings", "loss", "kind", "n"),
    [
        ({}, SoftmaxLoss(), Catalogue, None),
        ({}, BPR(), PerQuery, 1),
        ({"n": 9}, BPR(), PerQuery, 9),
        ({"kind": "catalogue"}, BPR(), Catalogue, None),
        ({"kind": "shared"}, BPR(), Shared, 1000),
        ({"kind": "shared", "n": 9}, SoftmaxLoss(), Shared, 9),
        ({"kind": "per_query"}, SoftmaxLoss(), PerQuery, 1000),
        ({"kind": "in_batch"}, SoftmaxLoss(), InBatch, None),
    ],
)
def test_negatives_are_those_asked_for_or_those_that_fit_the_loss(settings, loss, kind, n):
    found = build_negatives(make_config({"negatives": settings}), loss)
    assert type(found) is kind
    assert getattr(found, "n", None) == n


@pytest.mark.parametrize("kind", ["catalogue", "in_batch"])
def test_a_number_of_negatives_is_refused_where_nothing_is_drawn(kind):
    with pytest.raises(ConfigError, match=rf"negatives\.n does not go with negatives\.kind = '{kind}', got 5"):
        build_negatives(make_config({"negatives": {"kind": kind, "n": 5}}), SoftmaxLoss())


def test_the_objective_holds_what_the_config_says():
    resolved = config(negatives={"effective_n": 50}, train={"workspace_mib": 3})
    positives = ragged_from_pairs(torch.tensor([0, 1]), torch.tensor([1, 2]), 2)
    objective = build_objective(resolved, build_model(resolved, 2, 4), Context(positives, 4))
    assert objective.head.effective_n == 50
    assert objective.head.workspace.budget == 3 * 2**20
    assert objective.negatives.population.item_counts.tolist() == [0, 1, 1, 0]
    assert isinstance(objective.negatives, Catalogue)


def test_hits_cannot_be_kept_where_a_batch_holds_only_some_positives():
    chosen = make_config({"loss": {"name": "slatk", "keep_hits": True}, "train": {"order": "pair"}})
    with pytest.raises(ConfigError, match="needs all positives of a user in one batch"):
        resolve(chosen)


@pytest.mark.parametrize("name", LOSSES)
def test_the_number_of_negatives_of_the_paper_reaches_every_loss_on_movielens(name):
    """Appendix D.4: N = 1000, on MovieLens 200. Losses with a number of their own keep it."""
    own = {"bpr": 1, "guidedrec": 9, "bce": 4, "gbce": 64}.get(name)
    for data, n in (("movielens-100k", 200), ("gowalla", 1000)):
        resolved = resolve(assemble(data=data, loss=name)).negatives
        if resolved.kind == "per_query":
            assert resolved.n == (own or n)
        if LOSSES[name].defaults.effective_n == 1000 and (data, name) != ("gowalla", "slatk"):  # whose own is shipped
            assert resolved.effective_n == n
        for kind in ("shared", "per_query"):
            if name != "directau":
                chosen = resolve(assemble(data=data, loss=name, more={"negatives": {"kind": kind}})).negatives
                assert (chosen.n, chosen.effective_n in (None, n)) == (n, True)
    assert assemble(data="movielens-100k", loss=name, more={"negatives": {"n": 7}}).negatives.n == 7


def test_a_run_is_one_process_and_shares_no_state_with_others():
    assert SLatK(3).shares_state
    assert not build_loss(config(), 3, 5, 7).shares_state


def test_a_loss_that_needs_the_negatives_gets_as_many_as_it_prefers():
    for loss, n in (({"name": "bpr"}, 1), ({"name": "slatk", "distance": "sigmoid"}, 1000)):
        chosen = resolve(make_config({"loss": loss}))
        assert build_negatives(chosen, build_loss(chosen, 3, 5, 7)).n == n


class Half(Shared):
    """Negatives of another package, as far as the registry knows, with a default of their own."""

    def __init__(self, n: int = 50) -> None:
        super().__init__(n)


class InStock(Catalogue):
    """The catalogue without its first item, which the exact head would look at."""

    def draw(self, batch, encoded, generator):
        draw = super().draw(batch, encoded, generator)
        InStock.calls += 1
        return draw


class Few(Regression):
    def __init__(self, *, n: int = 7, rate: float = 0.1) -> None:
        super().__init__(n=n, rate=rate)


def test_a_class_of_another_package_has_its_own_defaults():
    plain = components({"negatives": Half(), "threshold": Few})
    assert plain["negatives"] == {"kind": f"{__name__}:Half"}
    config = resolve(make_config(plain))
    assert (config.negatives.n, config.negatives.effective_n, config.threshold.n) == (50, 50, 7)
    config = resolve(
        make_config(components({"negatives": {"kind": Half, "n": 9}, "threshold": {"estimator": Few, "n": 8}}))
    )
    assert (config.negatives.n, config.threshold.n) == (9, 8)


def test_what_a_subclass_of_the_catalogue_draws_is_asked_for():
    InStock.calls = 0
    split = make_split(generate(20, 30, interactions_per_user=5))
    settings = components({"negatives": InStock, "loss": {"name": "softmax"}, "k": 3, "train": {"epochs": 1}})
    fit(make_config(settings), Dataset("generated", split))
    assert InStock.calls > 0


def test_settings_of_another_kind_do_not_stay():
    mixed = {"negatives": {"kind": "mixed", "n_hard": 3, "paper_n": 200}, "threshold": {"every": 3}}
    assert merged(mixed, {"negatives": {"kind": "catalogue"}})["negatives"] == {"kind": "catalogue", "paper_n": 200}
    assert merged(mixed, {"negatives": {"pool": 100}})["negatives"]["n_hard"] == 3


def test_arguments_that_nobody_takes_are_refused():
    with pytest.raises(TypeError, match=r"Catalogue\(\) takes no arguments"):
        Catalogue(100)
    with pytest.raises(ConfigError, match=r"loss\.reduction must be 'mean', got 'sum'"):
        components({"loss": SoftmaxLoss(reduction="sum")})
