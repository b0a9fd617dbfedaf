"""Spark in local[2] gives the lists of the local path, byte for byte."""

from __future__ import annotations

import os
import shutil
import sys

import polars as pl
import pytest

from engines.conftest import assert_same_rows

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(shutil.which("java") is None and "JAVA_HOME" not in os.environ, reason="there is no JVM"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves its sockets to the garbage collector
]
pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'topshelf[spark]'")


@pytest.fixture(scope="module")
def session():
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        patch.setenv("OMP_NUM_THREADS", "1")
        builder = SparkSession.builder.master("local[2]").appName("topshelf")
        for name, value in {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "33",
            "spark.sql.shuffle.partitions": "2",
        }.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        yield spark
        spark.stop()


@pytest.mark.parametrize("name", ["mf", "ease"])
def test_spark_gives_the_lists_of_the_local_path(session, runs, expected, name):
    from topshelf.engines import spark

    users = expected[name]["user"].unique(maintain_order=True).to_list()
    frame = session.createDataFrame([(0.5, user) for user in users], ["other", "id"]).repartition(3)
    lists = spark.recommend(frame, runs / name, column="id")
    assert_same_rows(pl.DataFrame(lists.toArrow()), expected[name])


def test_unknown_columns_are_refused_before_anything_runs(session, runs):
    from topshelf.engines import spark
    from topshelf.errors import ConfigError

    with pytest.raises(ConfigError, match="column must be"):
        spark.recommend(session.createDataFrame([(1,)], ["id"]), runs / "mf")
