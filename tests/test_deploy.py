"""The examples of a deployment are checked by the tools of their formats; none of them is started here."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from topshelf.serving.settings import PREFIX, read_settings

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "examples" / "deploy"


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_dockerfile_has_no_lint():
    run(Path(sys.executable).parent / "hadolint", DEPLOY / "Dockerfile")


def test_the_dockerfile_copies_what_is_here_and_sets_what_can_be_set(monkeypatch):
    text = (DEPLOY / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (.+) \S+$", text, flags=re.MULTILINE):
        for name in line.split():
            assert (ROOT / name).exists(), name
    values = dict(re.findall(rf"({PREFIX}\w+)=(\S+)", text))
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    settings = read_settings(None, named={"run": "/runs/shop"})
    assert (settings.host, settings.keys, settings.events.path) == tuple(values.values())


def test_the_unit_is_one_that_systemd_takes(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    text = (DEPLOY / "topshelf.service").read_text()
    (tmp_path / "topshelf.service").write_text(text.replace("/opt/topshelf/bin/topshelf", shutil.which("true")))
    run("systemd-analyze", "verify", "--man=no", tmp_path / "topshelf.service")


def test_the_compose_file_builds_the_dockerfile_and_is_bound_to_this_machine():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    (service,) = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values()
    context = DEPLOY / service["build"]["context"]
    assert (context / service["build"]["dockerfile"]).resolve() == (DEPLOY / "Dockerfile").resolve()
    assert service["ports"] == ["127.0.0.1:8000:8000"]
    assert {volume.split(":")[1] for volume in service["volumes"]} == {"/runs", "/state"}
