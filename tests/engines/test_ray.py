"""A local Ray gives the lists of the local path, byte for byte."""

from __future__ import annotations

import os
import sys

import polars as pl
import pytest

from engines.conftest import assert_same_rows

pytestmark = [
    pytest.mark.engines,
    pytest.mark.filterwarnings(r"ignore::DeprecationWarning:ray\..*"),  # Ray's own, about its own settings
    pytest.mark.filterwarnings(r"ignore::FutureWarning:ray\..*"),
    pytest.mark.filterwarnings(r"ignore::ResourceWarning:ray\..*"),
]
pytest.importorskip("ray.data", reason="Ray Data is not installed: pip install 'topshelf[ray]'")


@pytest.fixture(scope="module")
def ray(tmp_path_factory):
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))  # Ray keeps the key of the local cluster there
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
        yield ray
        ray.shutdown()


@pytest.mark.parametrize("name", ["mf", "ease"])
def test_ray_gives_the_lists_of_the_local_path(ray, runs, expected, name):
    from topshelf.engines import ray as engine

    users = expected[name].select(pl.col("user").unique(maintain_order=True).alias("id"), other=0.5)
    dataset = ray.data.from_arrow(users.to_arrow()).repartition(3)
    lists = engine.recommend(dataset, runs / name, column="id", batch_size=33)
    found = pl.concat(pl.DataFrame(block) for block in ray.get(lists.to_arrow_refs()))
    assert_same_rows(found, expected[name])


def test_unknown_columns_are_refused_before_anything_runs(ray, runs):
    from topshelf.engines import ray as engine
    from topshelf.errors import ConfigError

    with pytest.raises(ConfigError, match="column must be"):
        engine.recommend(ray.data.range(3), runs / "mf")
