#!/bin/sh
# Runs the driver's Python for a worker of Spark on the same machine. Spark puts archives of itself in front of the
# installed packages. From such an archive Python compiles PySpark in each process, and reads the list of its files
# again: of the second that a query with state waits for a new Python process at its start, 0.4 s.
set -f # entries are not patterns
path=
IFS=:
for entry in $PYTHONPATH; do
  case $entry in
    */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip | */spark-core_*.jar) ;;
    *) path=$path${path:+:}$entry ;;
  esac
done
# For each query with state Spark prints what its own worker does to the terminal.
case "$*" in *.transform_with_state_driver_worker*) exec >/dev/null ;; esac
export PYTHONPATH="$path"
# Without site packages Python starts at once; the client asks for a process that has everything.
[ -n "$FLOWCORE_FORK_SERVER" ] && [ -z "$PYTHONHOME$PYTHONPLATLIBDIR" ] && exec "$PYSPARK_DRIVER_PYTHON" -I -S "${0%/*}/fork_client.py" "$@"
exec "$PYSPARK_DRIVER_PYTHON" "$@"
