"""The wheel and the sdist: all that the package needs is in them, and a wheel without the source tree works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from benches import write_clicks

pytestmark = [pytest.mark.slow, pytest.mark.network]  # the build backend is fetched

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "topshelf"
EXTRAS = {
    "plot",
    "tune",
    "ranking",
    "export",
    "serve",
    "tensorboard",
    "mlflow",
    "spark",
    "ray",
    "docs",
    "dev",
    "parity",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the wheel, built from the sdist as an index would."""
    folder = tmp_path_factory.mktemp("dist")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    venv = folder / "builder"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    builder = [str(venv / "bin" / "python"), "-m"]
    subprocess.run([*builder, *pip[2:], "install", "build"], check=True, timeout=300)
    subprocess.run(
        [*builder, "build", "--outdir", str(folder), str(ROOT)], check=True, timeout=600, capture_output=True
    )
    shutil.rmtree(venv)
    return folder


def files_of(folder):
    paths = (path.relative_to(folder.parent) for path in folder.rglob("*") if path.is_file())
    return {path.as_posix() for path in paths if "__pycache__" not in path.parts}


def test_the_wheel_has_every_file_of_the_package(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        text = opened.read(metadata).decode()
    assert {name for name in names if ".dist-info/" not in name} == files_of(SOURCE)
    for part in (
        "topshelf/page/style.css",
        "topshelf/page/script.js",
        "topshelf/serving/static/index.html",
        "topshelf/serving/static/page.js",
        "topshelf/bench/plans/quick.toml",
        "topshelf/py.typed",
    ):
        assert part in names
    assert any(name.startswith("topshelf/configs/") and name.endswith(".toml") for name in names)
    assert {line.partition(": ")[2] for line in text.splitlines() if line.startswith("Provides-Extra: ")} == EXTRAS


def test_the_sdist_has_what_a_build_needs(built):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/topshelf/__init__.py"} <= names


def test_the_wheel_alone_trains_recommends_and_writes_a_page(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    target = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*install, "--target", str(target), str(wheel)], check=True, timeout=120)
    write_clicks(tmp_path / "clicks.csv")

    def topshelf(*words):
        environment = {**os.environ, "PYTHONPATH": str(target)}
        call = [sys.executable, "-m", "topshelf", *words]
        return subprocess.run(call, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout

    where = subprocess.run(
        [sys.executable, "-c", "import topshelf; print(topshelf.__file__)"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(target)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert where.stdout.startswith(str(target))
    assert "kept in" in topshelf("train", "--data", "clicks.csv", "--k", "5", "--set", "train.epochs=2", "--out", "run")
    assert "rows written" in topshelf("recommend", "run", "--out", "lists.parquet")
    assert "report: " in topshelf("report", "run", "-o", "page.html")
    assert "quick" in topshelf("bench", "list")
    assert "<style>" in (tmp_path / "page.html").read_text()
