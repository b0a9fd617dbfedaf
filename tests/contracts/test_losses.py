"""What every loss of the registry promises: the contract suite, and what holds for our own losses only."""

from __future__ import annotations

import inspect

import pytest
import torch

from topshelf.config import RunConfig
from topshelf.losses import LISTWISE, LOSSES, Loss
from topshelf.testing import LossContract
from topshelf.testing.cases import case

EVERY = pytest.mark.parametrize("name", LOSSES)
SECTIONS = ("Shapes:", "Use when:", "Cost:", "Paper:", "Relations:")

# Their gradient is by design not the derivative of their value (weights that are not differentiated, networks that are
# fitted beside); tests/losses checks the gradients themselves.
NOT_DERIVATIVES = {"song_at_k", "sogslatk", "guidedrec"}
# These pull a positive up, or apart, whether or not there is a negative.
WITHOUT_RIVALS_TOO = {"directau"}
# Settings that take another way through a loss.
VARIANTS = [
    ("bsl", {"positives": "query"}),
    ("psl", {"method": "batch"}),
    ("slatk", {"keep_hits": True}),
    ("slatk", {"distance": "sigmoid"}),
]


class TestEveryLoss(LossContract):
    @pytest.fixture(autouse=True, params=LOSSES)
    def name(self, request):
        self.loss = LOSSES[request.param]
        self.is_derivative = request.param not in NOT_DERIVATIVES
        self.needs_negatives = request.param not in WITHOUT_RIVALS_TOO


class TestOtherSettings(LossContract):
    @pytest.fixture(autouse=True, params=VARIANTS, ids=lambda variant: "-".join([variant[0], *variant[1]]))
    def variant(self, request):
        name, self.settings = request.param
        self.loss = LOSSES[name]
        self.takes_pairs = "keep_hits" not in self.settings and "positives" not in self.settings


def make(name, **settings):
    contract = LossContract()
    contract.loss = LOSSES[name]
    return contract.make(**settings)


@EVERY
def test_it_is_documented_in_the_fixed_form(name):
    text = inspect.getdoc(LOSSES[name].documented())
    summary = text.split("\n\n")[0]
    assert summary.endswith(".")
    assert "\n" not in summary, "the first sentence is what `topshelf losses` prints: one line"
    places = [text.index(".. math::"), *(text.index(section) for section in SECTIONS)]
    assert places == sorted(places)


SIZES = ("n_queries", "n_items", "n_positives")


def place(argument):
    """Sizes, k, temperatures, the other settings, the reduction."""
    name = argument.name
    if name in (*SIZES, "k"):
        return (*SIZES, "k").index(name)
    return 4 if name.startswith("tau") else 6 if name == "reduction" else 5


@pytest.mark.parametrize("cls", [*LOSSES.values(), *LISTWISE.values()], ids=lambda cls: cls.__name__)
def test_constructor_arguments_come_in_one_order(cls):
    """By position sizes and k only; the settings of one family come in the order of its first member."""
    arguments = list(inspect.signature(cls).parameters.values())
    by_position = [argument for argument in arguments if argument.kind is not argument.KEYWORD_ONLY]
    by_keyword = arguments[len(by_position) :]
    assert {argument.name for argument in by_position} <= {*SIZES, "k"}
    assert arguments[-1].name == "reduction"
    for part in (by_position, by_keyword):
        assert [place(argument) for argument in part] == sorted(place(argument) for argument in part)
    names = [argument.name for argument in by_keyword]
    for parent in cls.__mro__[1:]:
        shared = [name for name in inspect.signature(parent.__init__).parameters if name in names]
        assert shared == sorted(shared, key=names.index), f"{parent.__name__} has them in another order"


def test_losses_at_k_take_the_number_of_queries_and_k_first():
    """The further sizes of SONG are given by keyword, so that nobody swaps two."""
    for name in ("slatk", "sogslatk", "song_at_k"):
        assert list(inspect.signature(LOSSES[name]).parameters)[:2] == ["n_queries", "k"], name
    for name in ("song", "song_at_k"):
        taken = inspect.signature(LOSSES[name]).parameters
        assert all(taken[size].kind is taken[size].KEYWORD_ONLY for size in ("n_items", "n_positives"))


@EVERY
def test_its_ranges_name_settings_that_exist_and_hold_no_nonsense(name):
    taken = inspect.signature(LOSSES[name].__init__).parameters
    ranges = LOSSES[name].ranges
    assert "train.learning_rate" in ranges
    for key, choices in ranges.items():
        section, _, setting = key.partition(".")
        known = taken if section == "loss" else RunConfig.model_fields[section].annotation.model_fields
        assert setting in known, key
        assert len(choices) == len(set(choices)) > 0
        if section == "loss":
            make(name, **{setting: choices[0]})
            make(name, **{setting: choices[-1]})


@EVERY
def test_the_run_is_told_how_far_the_sum_over_negatives_reaches_and_how_much_memory_a_pair_takes(name):
    """A sum whose size is a setting; all other losses have their formula's own sum or mean."""
    sizes = dict.fromkeys(("softmax", "slatk", "bsl", "psl", "sogclr", "sogslatk"), 1000)
    assert LOSSES[name].defaults.effective_n == {**sizes, "sampled_softmax": "catalogue"}.get(name)
    copies = 12 + 6 * 32 if name == "guidedrec" else 20 if name.startswith("lambda") else 12
    assert make(name).pair_copies == copies


def hinge_loss(positive, negative, owner=None, *, margin, mask=None):
    """A user's own formula; it asks for some of a call's arguments and for a setting."""
    owner = torch.arange(len(positive)) if owner is None else owner
    over = (negative[owner] - positive.unsqueeze(1) + margin).clamp(min=0)
    return (over if mask is None else over.masked_fill(mask[owner], 0.0)).sum(1)


class Hinge(Loss):
    formula = staticmethod(hinge_loss)

    def __init__(self, *, margin: float = 0.5, reduction="mean") -> None:
        super().__init__(reduction)
        self.margin = margin


class Doubled(Hinge):
    """Twice the hinge.

    Use when: a class documents itself.
    """

    def each(self, positive, negative, owner, extras):
        return 2 * super().each(positive, negative, owner, extras)


def test_a_user_defined_loss_is_a_formula_and_its_settings():
    given = case().but(mask=torch.rand(4, 5, generator=torch.Generator().manual_seed(1)) < 0.5)
    expected = hinge_loss(given.positive, given.negative, given.owner, margin=0.2, mask=given.mask)
    assert torch.equal(given.run(Hinge(margin=0.2, reduction="none")), expected)
    assert torch.equal(given.run(Doubled(margin=0.2, reduction="none")), 2 * expected)
    assert (Hinge.documented(), Doubled.documented()) == (hinge_loss, Doubled)
