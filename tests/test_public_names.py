"""What people import, and what importing costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import topshelf

ROOT = Path(__file__).parents[1]
NAMES = [
    "BPR", "EASE", "MF", "Artifact", "CheckpointError", "ConfigError", "DataError", "Evaluation", "Interactions",
    "LightGCN", "LinkPredictor", "Popularity", "QuerySet", "Ranker", "Recommender", "RunConfig", "SLatK", "SoftmaxLoss",
    "TopshelfError", "TrainingError", "XSimGCL", "blend", "compare", "evaluate", "evaluate_lists", "fit", "load",
    "load_split", "resume",
]  # fmt: skip


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_public_names_are_these():
    assert sorted(topshelf.__all__) == sorted(NAMES)


@pytest.mark.parametrize("name", topshelf.__all__)
def test_every_public_name_resolves_to_the_thing_of_that_name(name):
    assert getattr(topshelf, name).__name__ == name
    assert name in dir(topshelf)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'topshelf' has no attribute 'nothing'"):
        _ = topshelf.nothing


def test_importing_the_package_imports_nothing_heavy():
    heavy = {"torch", "polars", "scipy", "pydantic"}
    assert run(f"import sys, topshelf; print({heavy} & set(sys.modules))") == "set()"


def test_importing_the_models_does_not_import_numba():
    assert run("import sys, topshelf.models; print('numba' in sys.modules)") == "False"


def test_importing_one_loss_imports_little_else():
    code = """
import sys
from topshelf.losses import SLatK
print(sorted(name for name in sys.modules if name.startswith("topshelf.") and name.count(".") == 1))
print({"polars", "pydantic", "numba", "topshelf.compiled"} & set(sys.modules))
"""
    modules, heavy = run(code).splitlines()
    light = (
        "drawing",
        "errors",
        "item_table",
        "kernels",
        "losses",
        "ragged",
        "ranking",
        "registry",
        "reprs",
        "thresholds",
    )
    assert set(eval(modules)) <= {f"topshelf.{name}" for name in light}
    assert heavy == "set()"


STATE = """
import locale, os, random, signal, sys, warnings
from importlib import import_module
import numpy as np

def state():
    numbers, torch = np.random.get_state(), sys.modules.get("torch")
    return {
        "environment": {key: value for key, value in os.environ.items() if key not in OF_OTHERS},
        "random": random.getstate(),
        "numpy": (numbers[0], numbers[1].tolist(), *numbers[2:]),
        "torch": torch and (torch.get_rng_state().tolist(), torch.get_num_threads(), torch.get_default_dtype()),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "locale": locale.setlocale(locale.LC_ALL),
        "limits": (sys.getrecursionlimit(), sys.getswitchinterval(), os.getcwd(), os.umask(0o22)),
        "warnings": [entry for entry in map(str, warnings.filters) if not any(name in entry for name in OF_OTHERS)],
        "hooks": (sys.excepthook, sys.displayhook, len(sys.meta_path), len(sys.path)),
    }
"""
# What other libraries change when they are imported: polars tells its allocator through the environment, scipy hides a
# warning of numpy's and shows one of its own.
OF_OTHERS = ["_RJEM_MALLOC_CONF", "the matrix subclass", "SpecialFunctionWarning"]
MODULES = sorted(
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "src" / "topshelf").rglob("*.py")
)


@pytest.mark.parametrize(
    ("before", "modules"), [([], ["topshelf"]), (["torch"], MODULES)], ids=["the package", "every module"]
)
def test_importing_changes_no_global_state(before, modules):
    """Not the environment (OMP_WAIT_POLICY was set), not the stream of `random` (rich draws from it), nothing else."""
    code = f"""{STATE}
OF_OTHERS = {OF_OTHERS}
os.environ.pop("OMP_WAIT_POLICY", None)
[import_module(name) for name in {before}]
before = state()
[import_module(name) for name in {modules}]
print([(key, before[key], value) for key, value in state().items() if value != before[key]])
"""
    assert run(code) == "[]"


def test_import_contracts_pass():
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
