"""Docstrings and constructors as plain values."""

from __future__ import annotations

from typing import ClassVar

import pytest

from topshelf.losses import LISTWISE, LOSSES
from topshelf.losses.describe import describe as describe_losses
from topshelf.models import MODELS
from topshelf.registry import LABELS, documentation, first_sentence, paragraphs, parts, plain, row, settings, summary

DOCUMENTED = {
    **{f"model {name}": cls for name, cls in MODELS.items()},
    **{f"loss {name}": cls.documented() for name, cls in LOSSES.items()},
    **{f"graded {name}": cls.documented() for name, cls in LISTWISE.items()},
}


class Sample:
    r"""A thing that stands
    for others.

    .. math::

        a = b

    where a is b.
    Settings: ``width`` w, of
        both.
    Use when: it fits.   Cost: O(1). Twice that
        with :func:`twice` or :math:`\alpha`.

    Paper: Nobody: a treatise.
    """

    ranges: ClassVar = {"thing.width": (1, 2)}

    def __init__(self, n_queries: int, n_items: int, *, width: int = 1, names: tuple[str, ...] = ("a",)) -> None:
        pass


def test_a_row_holds_the_named_parts_without_markup_and_the_constructors_defaults():
    assert row("sample", "form", Sample, Sample) == {
        "name": "sample",
        "form": "form",
        "summary": "A thing that stands for others.",
        "use_when": "it fits.",
        "cost": r"O(1). Twice that with twice or \alpha.",
        "paper": "Nobody: a treatise.",
        "relations": "",
        "about_settings": "width w, of both.",
        "settings": {"width": 1, "names": ("a",)},
        "ranges": {"thing.width": (1, 2)},
    }


def test_a_formula_is_one_paragraph_and_text_before_the_first_part_has_no_label():
    formula, body, paper = paragraphs(documentation(Sample))
    assert " ".join(formula.split()) == ".. math:: a = b"
    assert [label for label, _ in parts(body)] == ["", "Settings", "Use when", "Cost"]
    assert parts(body)[0][1] == "where a is b."
    assert parts(paper) == [("Paper", "Nobody: a treatise.")]


def test_what_the_data_decides_is_no_setting():
    assert list(settings(Sample)) == ["width", "names"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one. Two.", "one."),
        ("n^2 weights; refused above 0.5 GB.", "n^2 weights; refused above 0.5 GB."),
        ("He et al., a paper. (Ours.)", "He et al., a paper."),
        ("", ""),
    ],
)
def test_the_first_sentence_ends_before_the_next_one_begins(text, expected):
    assert first_sentence(text) == expected


def test_markup_is_taken_off_and_nothing_else():
    assert plain("``l1`` of :class:`~topshelf.SLIM`, 2*3 `is` 6") == "l1 of topshelf.SLIM, 2*3 `is` 6"


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_parts_of_a_docstring_are_there_once_in_the_order_of_the_house(name):
    text = documentation(DOCUMENTED[name])
    labels = [label for paragraph in paragraphs(text) for label, _ in parts(paragraph) if label]
    assert labels == [label for label in LABELS if label in labels], f"the order is {', '.join(LABELS)}"
    assert {"Use when", "Cost", "Paper"} <= set(labels)
    assert summary(text).endswith(".")


def test_losses_are_described_in_both_forms():
    rows = [*describe_losses(), *describe_losses(LISTWISE)]
    assert [row["name"] for row in rows] == [*LOSSES, *LISTWISE]
    assert [row["form"] for row in rows] == ["ragged"] * len(LOSSES) + ["graded"] * len(LISTWISE)
    assert all(row["use_when"] and row["cost"] and row["paper"] and row["relations"] for row in rows)
