#!/usr/bin/env bash
# entrypoint.sh COMMAND...: the entry point of the image. Spark on Kubernetes runs `driver` and `executor`, with
# further arguments in the environment (see Spark's KubernetesExecutorBackend); everything else is a command.
set -euo pipefail

# As flowcore sets it itself, for the JVMs that it does not start: the driver's and the executors'.
umask "${FLOWCORE_FILES_UMASK:-077}"

# SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ...: the executor's JVM options, in their order.
java_options() {
  local number=0 name=SPARK_JAVA_OPT_0
  while [ -n "${!name+set}" ]; do
    printf '%s\0' "${!name}"
    number=$((number + 1)) name=SPARK_JAVA_OPT_$number
  done
}

case ${1:-} in
  driver)
    shift
    exec "$SPARK_HOME/bin/spark-submit" --deploy-mode client \
      --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@"
    ;;
  executor)
    mapfile -d '' options < <(java_options)
    exec java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
      -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_HOME/jars/*" \
      org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
      --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
      --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
      --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
  *) exec "$@" ;;
esac
