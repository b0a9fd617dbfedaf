"""What TAB offers, by bash's rules, and that it is what the registries and the settings hold."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
from pydantic import BaseModel
from typer.core import TyperArgument, TyperOption

from command_line import run_topshelf
from topshelf import registry
from topshelf.cli import source
from topshelf.config import CONFIGS, CatalogueConfig, overrides
from topshelf.data import DATASETS
from topshelf.data.named import NAMED
from topshelf.losses import LISTWISE, LOSSES
from topshelf.models import MODELS
from topshelf.negatives import NEGATIVES
from topshelf.training.build import REGISTRIES
from topshelf.training.thresholding import ESTIMATORS


@pytest.fixture
def tab(monkeypatch, tmp_path):
    """What is offered for the last of these words; bash splits words at "="."""
    monkeypatch.chdir(tmp_path)
    for kind in (TyperArgument, TyperOption):  # put back afterwards
        monkeypatch.setattr(kind, "process_value", kind.process_value)

    def offers(*words):
        monkeypatch.setenv("_TOPSHELF_PREFIX", "")
        monkeypatch.setenv("_TOPSHELF_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", "\n".join(("topshelf", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        return run_topshelf()[0].split()

    return offers


@pytest.mark.parametrize("command", ["train", "tune", "diagnose"])
def test_models_losses_and_datasets_are_offered(tab, command):
    assert tab(command, "--model", "") == list(MODELS)
    assert tab(command, "--loss", "") == list(LOSSES)
    assert tab(command, "--data", "") == list(DATASETS)
    assert tab(command, "--loss", "=", "sla") == ["slatk"]
    assert tab(command, "--model", "package.module:Cl") == []


@pytest.mark.parametrize("task", REGISTRIES)
def test_those_of_the_task_given_before_are_offered(tab, task):
    given = ("train", "--task", task)
    assert tab(*given, "--model", "") == list(REGISTRIES[task].models)
    assert tab(*given, "--loss", "") == list(REGISTRIES[task].losses)
    assert tab(*given, "--data", "") == list(NAMED[task])
    names = [name.removesuffix("=") for name in tab(*given, "--set", "")]
    assert set(names) == set(source.settings(task))
    assert tab("tune", "--task", task, "--range", "model.name", "=") == list(REGISTRIES[task].models)
    assert tab("models", "--task", task, "") == list(REGISTRIES[task].models)
    assert tab("train", "--task", task[:3]) == [task]


def test_the_settings_offered_are_those_of_the_tasks_model_and_sections(tab):
    links, ranking = ("train", "--task", "links"), ("train", "--task", "ranking", "--model", "mlp")
    assert tab(*links, "--set", "negatives.kind", "=") == ["auto", "pairs", "per_node", "shared", "hard"]
    assert tab(*links, "--set", "data.gr") == [
        "data.graph=",
        *(f"data.graph={x}" for x in ("cora", "citeseer", "pubmed")),
    ]
    assert tab(*ranking, "--set", "model.h") == ["model.hidden="]
    assert tab(*ranking, "--set", "negatives.") == []
    assert tab("train", "--task", "sequences", "--set", "threshold.of", "=") == ["position", "user", "batch"]
    assert tab("train", "--task", "unknown", "--model", "") == []


def test_names_are_offered_as_arguments(tab):
    assert tab("models", "xs") == ["xsimgcl"]
    assert tab("losses", "") == list(LOSSES | LISTWISE)
    assert tab("data", "get", "movie") == [name for name in DATASETS if name.startswith("movie")]
    assert tab("data", "get", "c") == ["cora", "citeseer"]
    assert tab("models", "ml") == ["mlp"]
    assert tab("diagnose", "--losses", "softmax,bp") == ["softmax,bpr"]
    assert tab("evaluate", "runs/x", "--protocol", "") == ["standard", "paper"]
    assert tab("train", "--dates", "d") == ["day-first"]


def test_datasets_are_offered_with_files_and_files_alone_are_left_to_the_shell(tab, tmp_path):
    (tmp_path / "movies").mkdir()
    (tmp_path / "movies.csv").touch()
    assert tab("train", "--data", "movie") == [
        "movielens-100k",
        "movielens-1m",
        "movielens-1m-temporal",
        "movies/",
        "movies.csv",
    ]
    assert tab("data", "show", "movies") == []


def test_run_folders_are_offered_here_and_one_level_down(tab, tmp_path):
    for name in ("runs/one", "runs/two", "runs/[odd]", "here", "a/b/c"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "run.json").touch()
    (tmp_path / "runs" / "tune-x").mkdir()
    (tmp_path / "runs" / "tune-x" / "study.json").touch()
    assert tab("evaluate", "") == ["here", "runs/[odd]", "runs/one", "runs/two"]
    assert tab("recommend", "runs/t") == ["runs/two"]
    assert tab("recommend", "runs/[") == ["runs/[odd]"]
    assert tab("evaluate", "here", "--against", "./runs/o") == ["./runs/one"]
    assert tab("blend", "here", "runs/o") == ["runs/one"]
    assert tab("train", "--resume", str(tmp_path / "h")) == [str(tmp_path / "here")]
    assert tab("tune", "--resume", "") == ["runs/tune-x"]
    assert tab("evaluate", "a/") == ["a/b/c"]


def test_settings_are_offered_and_then_their_values(tab):
    names = [name.removesuffix("=") for name in tab("train", "--set", "")]
    assert {"k", "train.epochs", "model.name", "loss.tau_weight", "data.split"} < set(names)
    assert tab("train", "--set", "train.or") == ["train.order=", "train.order=query", "train.order=pair"]
    assert tab("train", "--set", "train.order", "=") == ["query", "pair"]
    assert tab("train", "--set", "train.order", "=", "p") == ["pair"]
    assert tab("train", "--set", "=", "train.order", "=", "p") == ["pair"]
    assert tab("train", "--set", "train.refit", "=") == ["true", "false", "all"]
    assert tab("train", "--set", "loss.name", "=", "lamb") == [name for name in LOSSES if name.startswith("lamb")]
    assert tab("train", "--set", "nothing", "=") == []
    assert tab("tune", "--range", "train.epochs") == ["train.epochs=", "train.epochs=200"]


def test_the_settings_are_those_of_the_model_and_loss_given_before(tab):
    chosen = ("--model", "slim", "--set", "train.epochs", "=", "3", "--loss", "psl")
    assert tab("train", *chosen, "--set", "model.") == ["model.name=", "model.l1=", "model.l2=", "model.memory="]
    assert tab("train", *chosen, "--set", "loss.act") == ["loss.activation=", *(
        f"loss.activation={value}" for value in ("tanh", "relu", "atan", "exponential")
    )]  # fmt: skip
    assert tab("train", "--loss", "package.module:Class", "--set", "loss.") == [
        "loss.name=", *(f"loss.name={name}" for name in LOSSES)
    ]  # fmt: skip


def test_the_names_are_those_of_the_registries():
    assert source.tasks() == list(REGISTRIES)
    for task, own in REGISTRIES.items():
        assert source.models(task) == list(own.models)
        assert source.losses(task) == list(own.losses)
        assert source.datasets(task) == list(NAMED[task])
    assert set(source.models()) == {name for own in REGISTRIES.values() for name in own.models}


def choices(annotation):
    """The fixed values of an annotation, as they are typed."""
    if annotation is bool:
        return ("true", "false")
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(value for inner in get_args(annotation) for value in choices(inner))


CLASSES = [
    (task, section, name)
    for task, own in REGISTRIES.items()
    for section, registry in (("model", own.models), ("loss", own.losses))
    for name in registry
]


@pytest.mark.parametrize(("task", "section", "name"), CLASSES)
def test_the_settings_of_every_loss_and_model_are_those_of_its_constructor(task, section, name):
    cls = (REGISTRIES[task].losses if section == "loss" else REGISTRIES[task].models)[name]
    rows = source.settings(task, **{section: name})
    own = {key: row for key, row in rows.items() if key.startswith(f"{section}.") and key != f"{section}.name"}
    hints, expected = get_type_hints(cls.__init__), registry.settings(cls)
    assert list(own) == [f"{section}.{key}" for key in expected]
    for key, default in expected.items():
        row = own[f"{section}.{key}"]
        assert row.choices == choices(hints[key])
        assert typed(row.default) == (default if isinstance(default, str | float | int) else None)


def typed(text):
    return overrides([f"k={text}"])["k"] if text else None


@pytest.mark.parametrize("task", CONFIGS)
def test_the_settings_of_a_run_are_those_of_its_config(task):
    rows, schema = source.settings(task), CONFIGS[task]
    has_classes = issubclass(schema, CatalogueConfig)
    sections = {"negatives": NEGATIVES, "threshold": ESTIMATORS} if has_classes else {}
    of_classes = {
        f"{section}.{key}": default
        for section, classes in sections.items()
        for cls in classes.values()
        for key, default in registry.settings(cls).items()
    }
    expected = {}
    for name, field in schema.model_fields.items():
        if name in ("model", "loss"):
            expected[f"{name}.name"] = field.default.name
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            expected |= {f"{name}.{key}": value for key, value in field.annotation.model_fields.items()}
            expected |= {key: None for key in of_classes if key.startswith(f"{name}.") and key not in expected}
        else:
            expected[name] = field
    own = ("model.", "loss.")
    assert {key for key in rows if not key.startswith(own) or key.endswith(".name")} == set(expected)
    for key, field in expected.items():
        if key.startswith(own):
            assert rows[key].default == field
        elif field is None:
            assert typed(rows[key].default) == of_classes[key]
            assert rows[key].about.startswith("With ")
        else:
            assert rows[key].about == field.description
            named = {"negatives.kind": ("auto", *NEGATIVES), "threshold.estimator": tuple(ESTIMATORS)}
            assert rows[key].choices == (named if has_classes else {}).get(key, choices(field.annotation))
            default = field.default if isinstance(field.default, str | float | int) else None
            assert typed(rows[key].default) == default


def test_the_settings_of_negatives_are_offered(tab):
    assert tab("train", "--set", "negatives.n_h") == ["negatives.n_hard=", "negatives.n_hard=50"]
    assert source.settings()["negatives.pool"].about == "With kind = mixed."


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_by_the_script_that_it_is_given(tmp_path):
    program = tmp_path / "topshelf"
    code = "import sys; sys.argv[0] = 'topshelf'; from topshelf.__main__ import main; main()"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    program.chmod(0o755)
    script = f"""
eval "$(_TOPSHELF_COMPLETE=source_bash {program})"
COMP_WORDS=({program} train --set threshold.estimator = i)
COMP_CWORD=5
_topshelf_completion {program}
echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["iid", "incremental"]
