"""Messages that offer the name that was meant."""

from __future__ import annotations

import pytest

from topshelf.config import in_sections
from topshelf.data.named import NAMED
from topshelf.errors import ConfigError, closest, one_of, suggestion
from topshelf.losses import LOSSES
from topshelf.models import MODELS

REGISTRIES = {"loss": LOSSES, "model": MODELS, "dataset": NAMED["interactions"]}
NAMES = [(kind, name) for kind, names in REGISTRIES.items() for name in names if len(name) > 3]


@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_a_name_with_two_letters_swapped_or_in_capitals_is_offered(kind, name):
    swapped = next(
        text
        for at in range(1, len(name) - 1)
        if (text := f"{name[:at]}{name[at + 1]}{name[at]}{name[at + 2 :]}") != name
    )
    for written in {swapped, name.upper()} - set(REGISTRIES[kind]):
        assert name in closest(written, REGISTRIES[kind]), written


@pytest.mark.parametrize(
    ("value", "choices", "hint"),
    [
        ("SL@K", LOSSES, "; did you mean slatk?"),
        ("Sampled Softmax", LOSSES, "; did you mean sampled_softmax?"),
        ("movielens", ["gowalla", "movielens-100k", "movielens-1m"], "; did you mean movielens-100k or movielens-1m?"),
        ("zzz", LOSSES, ""),
        ("so", ["song", "softmax"], ""),  # too short for a beginning
        (7, ["seven"], ""),
        ("", ["abc"], ""),
    ],
)
def test_a_suggestion_is_close_or_nothing(value, choices, hint):
    assert suggestion(value, choices) == hint


def test_one_of_names_the_setting_the_choices_the_value_and_the_closest():
    with pytest.raises(ConfigError, match=r"^init must be one of xavier, normal, got 'norml'; did you mean normal\?$"):
        one_of("init", "norml", ["xavier", "normal"])


def test_a_key_without_its_section_is_found_in_all_sections():
    names = ["k", "train.epochs", "loss.k", "negatives.n", "threshold.n"]
    assert in_sections("n", names) == "; did you mean negatives.n or threshold.n?"
    assert in_sections("epoch", names) == "; did you mean train.epochs?"
    assert in_sections("width", names) == ""
