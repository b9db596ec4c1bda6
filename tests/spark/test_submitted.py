"""`spark-submit` starts a run, as on Kubernetes: the driver's JVM exists before flowcore."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flowcore.cli import main
from flowcore.installation.archive import driver_class_path, driver_options
from flowcore.installation.jars import pyspark_jars
from flowcore.installation.java import find_java

pytestmark = pytest.mark.spark

FLOW = """
from flowcore import Flow, Json, from_frame

def reported(spark):
    context = spark.sparkContext
    return spark.createDataFrame([(context.master, context.appName)], "master STRING, name STRING")

flow = Flow("reported")
flow.read("spark", from_frame(reported, "master STRING, name STRING")).write("reported", Json("reported"))
"""


def test_options_of_spark_submit_take_precedence(tmp_path: Path) -> None:
    """The flow runs on the submitted master, under the submitted name."""
    (tmp_path / "reported_flow.py").write_text(FLOW)
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraClassPath": driver_class_path(),
        "spark.driver.extraJavaOptions": " ".join(driver_options(short_lived=True)),
    }
    done = subprocess.run(
        [
            pyspark_jars().parent / "bin/spark-submit", "--master", "local[3]", "--name", "submitted",
            *(part for key, value in conf.items() for part in ("--conf", f"{key}={value}")),
            main.__file__, "run", "reported_flow:flow",
            "--set", f"data.dir={tmp_path}", "--set", f"state.dir={tmp_path / 'state'}",
        ],
        env=os.environ
        | {
            "JAVA_HOME": str(find_java().home),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    lines = [
        line for file in (tmp_path / "reported").glob("*.json") for line in file.read_text().splitlines()
    ]
    assert [json.loads(line) for line in lines] == [{"master": "local[3]", "name": "submitted"}]
