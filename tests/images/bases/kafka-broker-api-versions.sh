#!/bin/sh
# Whether the broker answers, by a command that is in the broker's own jars; arguments as the public image's.
exec /opt/java/bin/java -cp '/opt/kafka/libs/*' kafka.admin.ConfigCommand "$@" --describe --entity-type brokers --all
