"""What the daemon of Spark's Python workers imports."""

import json
import subprocess
import sys


def test_workers_import_neither_the_api_nor_parsers_nor_kafka_clients() -> None:
    """Each query with state waits for a daemon, which imports its modules first."""
    code = (
        "import json, sys; import flowcore.spark.run.worker_daemon;"
        "slow = ('flowcore.api', 'flowcore.planner', 'flowcore.kafka', 'sqlglot', 'kafka');"
        "print(json.dumps([name for name in slow if name in sys.modules]))"
    )

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert json.loads(found.stdout) == []
