"""Classes by name: of the registries, of a user's own modules, and from instances back to names and settings."""

from __future__ import annotations

import copy
import sys

import pytest
import torch

from topshelf import registry
from topshelf.config import class_names, make_config
from topshelf.errors import CheckpointError, ConfigError
from topshelf.losses import LOSSES, Loss, SLatK
from topshelf.models import EASE, MF, MODELS, Model
from topshelf.negatives import NEGATIVES, Mixed, Negatives, Shared
from topshelf.registry import Recorded, check_allowed, lookup, named
from topshelf.training.build import build_model, resolve

MODULE = '''
from topshelf.models import MF, Model

class Mine(MF):
    """A model of somebody's own."""

    def __init__(self, n_queries: int, n_items: int, *, dim: int = 7, twist: float = 0.5) -> None:
        super().__init__(n_queries, n_items, dim=dim)
        self.twist = twist

class Outer:
    class Inner(Model):
        pass

class NoModel:
    pass

a_number = 3
'''


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """The name of a module in a folder of its own."""
    (tmp_path / "their_models.py").write_text(MODULE)
    (tmp_path / "their_broken.py").write_text("1 / 0\n")
    package = tmp_path / "their_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "deep.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "their_models"
    for name in [name for name in sys.modules if name.startswith("their_")]:
        del sys.modules[name]


def look(name, registry=MODELS, base=Model):
    return lookup("model.name", name, registry, base)


def test_a_name_of_the_registry_is_its_class():
    assert all(look(name) is cls for name, cls in MODELS.items())
    with pytest.raises(ConfigError, match=r"model\.name must be one of mf, .*, got 'fm'"):
        look("fm")


def test_a_class_of_another_module_is_imported(theirs):
    assert theirs not in sys.modules
    found = look(f"{theirs}:Mine")
    assert found is sys.modules[theirs].Mine
    assert look(f"{theirs}:Outer.Inner") is sys.modules[theirs].Outer.Inner
    assert look("their_package.deep:Mine") is sys.modules["their_package.deep"].Mine


@pytest.mark.parametrize("name", ["NoModel", "a_number", "Outer"])
def test_what_is_not_of_the_base_is_refused(theirs, name):
    with pytest.raises(ConfigError, match=rf"model\.name must name a subclass of topshelf's Model, got .*'{theirs}:"):
        look(f"{theirs}:{name}")
    with pytest.raises(ConfigError, match=r"must name a subclass of topshelf's Loss, got .*Mine"):
        lookup("loss.name", f"{theirs}:Mine", LOSSES, Loss)


@pytest.mark.parametrize("name", ["Yours", "", "Outer.Nothing", "Mine.Inner", "__"])
def test_a_class_that_is_not_there_is_refused(theirs, name):
    with pytest.raises(ConfigError, match=rf"got nothing of that name for '{theirs}:{name}'"):
        look(f"{theirs}:{name}")


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("no_such_module:Mine", "no_such_module cannot be imported: ModuleNotFoundError"),
        ("their_models.deep:Mine", r"their_models\.deep cannot be imported: ModuleNotFoundError"),
        ("their_broken:Mine", "their_broken cannot be imported: ZeroDivisionError: division by zero"),
        (":Mine", "cannot be imported: ValueError"),
        (".relative:Mine", "cannot be imported: TypeError"),
    ],
)
def test_a_module_that_cannot_be_imported_says_why_and_what_to_do(theirs, name, error):
    with pytest.raises(ConfigError, match=rf"model\.name is '.*', but .*{error}.*Install it, or put its folder on"):
        look(name)


def test_a_dot_without_a_colon_is_told_where_the_colon_goes(theirs):
    message = rf"must be a name or 'package\.module:Class', got '{theirs}\.Mine'; put a colon before the class"
    with pytest.raises(ConfigError, match=message):
        look(f"{theirs}.Mine")
    assert theirs not in sys.modules


def test_a_class_of_another_module_is_resolved_and_built_with_its_settings(theirs):
    config = resolve(make_config({"model": {"name": f"{theirs}:Mine", "twist": 2}}))
    assert config.model.settings == {"dim": 7, "twist": 2.0}
    model = build_model(config, 3, 4)
    assert (type(model).__name__, model.twist, tuple(model.query_vectors.shape)) == ("Mine", 2.0, (3, 7))
    with pytest.raises(ConfigError, match=r"model\.turn is not a setting; accepted here: dim, twist"):
        resolve(make_config({"model": {"name": f"{theirs}:Mine", "turn": 2}}))


def name_of(value, registry=MODELS, base=Model):
    return named(value, registry, base, "model")


def test_names_are_taken_as_they_are():
    assert name_of("anything") == {"name": "anything"}


def test_a_class_is_its_name(theirs):
    assert name_of(EASE) == {"name": "ease"}
    assert name_of(look(f"{theirs}:Mine")) == {"name": f"{theirs}:Mine"}
    assert name_of(look(f"{theirs}:Outer.Inner")) == {"name": f"{theirs}:Outer.Inner"}


def test_an_instance_is_its_name_and_the_settings_it_was_made_with(theirs):
    assert name_of(MF(3, 4)) == {"name": "mf"}
    assert name_of(MF(3, n_items=4, dim=5, score="dot")) == {"name": "mf", "dim": 5, "score": "dot"}
    mine = look(f"{theirs}:Mine")(3, 4, twist=0.25)
    assert name_of(mine) == {"name": f"{theirs}:Mine", "twist": 0.25}
    assert named(SLatK(9, k=3, tau=0.2), LOSSES, Loss, "loss") == {"name": "slatk", "k": 3, "tau": 0.2}
    assert named(Shared(30), NEGATIVES, Negatives, "negatives") == {"name": "shared", "n": 30}
    assert named(Mixed(pool=90), NEGATIVES, Negatives, "negatives") == {"name": "mixed", "pool": 90}


def test_a_name_and_settings_make_the_instance_again(theirs):
    mine = look(f"{theirs}:Mine")(3, 4, dim=2, twist=0.25)
    again = build_model(resolve(make_config({"model": name_of(mine)})), 3, 4)
    assert type(again) is type(mine)
    assert name_of(again) == name_of(mine)


@pytest.mark.parametrize("value", [3, None, object(), SLatK(3), SLatK, Recorded()])
def test_what_is_neither_is_refused(value):
    message = "model must be a name, settings with a name, or a class or an instance of Model, got"
    with pytest.raises(ConfigError, match=message):
        name_of(value)


def test_what_an_instance_was_made_with_stays_with_a_copy_and_is_not_saved():
    model = MF(3, 4, dim=5)
    with torch.no_grad():
        model.item_vectors.zero_()
    assert name_of(copy.deepcopy(model)) == {"name": "mf", "dim": 5}
    assert model.state_dict().keys() == {"query_vectors", "item_vectors"}


@pytest.fixture(autouse=True)
def nothing_allowed(monkeypatch):
    monkeypatch.setattr(registry, "_ALLOWED", set())


def allowed(name, *packages):
    registry._ALLOWED.clear()
    registry.allow(packages)
    check_allowed({"model.name": "mf", "loss.name": name}, "runs/a")


def test_a_module_that_was_neither_imported_nor_allowed_is_refused_and_stays_unimported(theirs):
    message = (
        rf"runs/a has loss\.name = '{theirs}:Mine', .* import {theirs} first, or allow its package .*--allow {theirs}\)"
    )
    for allow in ([], ["their"], ["their_model"], [f"{theirs}.deep"], ["mf"], [""]):
        with pytest.raises(CheckpointError, match=message):
            allowed(f"{theirs}:Mine", *allow)
    assert theirs not in sys.modules


def test_a_module_that_is_allowed_or_whose_package_is_passes(theirs):
    allowed(f"{theirs}:Mine", theirs)
    allowed("their_package.deep:Mine", "other", "their_package")
    allowed("their_package.deep:Mine", "their_package.deep")
    assert theirs not in sys.modules  # checked, not imported


def test_a_module_that_the_caller_imported_passes(theirs):
    look(f"{theirs}:Mine")
    allowed(f"{theirs}:Mine")


def test_names_of_the_registries_need_no_leave():
    allowed("slatk")
    allowed("os.system")  # no class: the lookup refuses it


def test_the_classes_that_a_config_names_are_all_looked_at():
    inner = {"name": "topshelf.models.blend:Blend", "parts": [{"name": "d:E"}]}
    parts = [{"name": "mf"}, {"name": "a.b:C"}, {"no": "name"}, inner]
    config = make_config(
        {
            "model": {"name": "blend", "parts": parts},
            "loss": {"name": "l:L"},
            "negatives": {"kind": "n:N"},
            "threshold": {"estimator": "t:T"},
        }
    )
    assert class_names(config) == {
        "model.name": "blend",
        "loss.name": "l:L",
        "negatives.kind": "n:N",
        "threshold.estimator": "t:T",
        "model.parts.0.name": "mf",
        "model.parts.1.name": "a.b:C",
        "model.parts.3.name": "topshelf.models.blend:Blend",
        "model.parts.3.parts.0.name": "d:E",
    }
