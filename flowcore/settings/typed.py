"""The settings, each with its key, type, default and meaning.

They are declared by hand: pydantic-settings takes 0.3 s to import, 50 times as long as this package, and
merges the sources before it validates, so that no message could name the source of a wrong value.
"""

import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Self

from flowcore.durations import parse_duration, show_duration
from flowcore.errors import SettingsError
from flowcore.settings.secrets import FILE_SUFFIX, hide_login, read_secret
from flowcore.settings.sources import FILE_VARIABLE, from_environment, from_file, from_mapping
from flowcore.settings.values import (
    duration_at_least,
    read_address,
    read_batch,
    read_flag,
    read_folder,
    read_interval,
    read_number,
    read_ports,
    read_positive,
    read_size,
    read_text,
    read_umask,
    read_word,
)

__all__ = ["Settings", "keys", "secret_keys"]

CheckMode = Literal["off", "sample", "full"]
ResultVisibility = Literal["whole", "pipelined"]


_FORMER = {"execution.hand-over": "execution.result-visibility"}
"""Keys that were renamed, which nobody may set without a word."""


def _setting(key: str, default: Any, read: Callable[[Any], Any], doc: str) -> Any:
    return field(default=default, metadata={"key": key, "read": read, "doc": doc})


def _secret(key: str, doc: str) -> Any:
    """A text that no message shows; the key with ``.file`` names a file with it."""
    metadata = {"key": key, "read": read_text, "doc": doc, "secret": True}
    return field(default=None, repr=False, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one run, typed; `Settings.of` reads them from their keys."""

    bootstrap_servers: str | None = _setting(
        "kafka.bootstrap.servers", None, read_text, "host:port[,host:port] of the Kafka broker"
    )
    kafka_protocol: str = _setting(
        "kafka.security.protocol", "PLAINTEXT", read_word("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL",
    )  # fmt: skip
    kafka_mechanism: str | None = _setting(
        "kafka.sasl.mechanism", None, read_word("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
        "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER",
    )  # fmt: skip
    kafka_username: str | None = _setting(
        "kafka.sasl.username", None, read_text, "login name; with OAUTHBEARER the client id"
    )
    kafka_password: str | None = _secret(
        "kafka.sasl.password",
        "its password, or client secret; `--set` refuses it, so that no command line has it",
    )
    kafka_ca: Path | None = _setting(
        "kafka.ssl.ca", None, Path, "PEM file of the authorities trusted to sign the broker's certificate"
    )
    kafka_certificate: Path | None = _setting(
        "kafka.ssl.certificate", None, Path, "PEM file of the client's certificate"
    )
    kafka_key: Path | None = _setting(
        "kafka.ssl.key", None, Path, "PEM file of the client's private key (PKCS 8)"
    )
    kafka_key_password: str | None = _secret("kafka.ssl.key-password", "password of an encrypted private key")
    control_key: str | None = _secret(
        "kafka.control-key", "secret with which control elements of topics with signed=True are signed"
    )
    kafka_token_url: str | None = _setting(
        "kafka.sasl.oauthbearer.token.endpoint.url", None, read_address,
        "OAUTHBEARER: where the issuer gives tokens for client credentials; https, on loopback also http",
    )  # fmt: skip
    kafka_token_scope: str | None = _setting(
        "kafka.sasl.oauthbearer.scope", None, read_text, "OAUTHBEARER: the scope that is asked for"
    )
    kafka_token_ca: Path | None = _setting(
        "kafka.sasl.oauthbearer.ca", None, Path,
        "OAUTHBEARER: PEM file of the authorities trusted to sign the issuer's certificate",
    )  # fmt: skip
    answer_timeout: timedelta = _setting(
        "kafka.answer-timeout", timedelta(minutes=2),
        duration_at_least(2, "a broker that is only slow would look as if it was away"),
        "longest time that a batch of a live query waits for an answer of the broker, at least 2 s; then the "
        "query waits without a batch",
    )  # fmt: skip
    registry_url: str | None = _setting(
        "schema-registry.url", None, read_address,
        "address of the schema registry (Confluent's interface), for topics of the format avro-confluent "
        "without schema_id",
    )  # fmt: skip
    registry_login: str | None = _secret(
        "schema-registry.basic.auth.user.info", "name:password with which the schema registry is asked"
    )
    registry_token: str | None = _secret(
        "schema-registry.bearer.auth.token",
        "token with which it is asked, instead of a name",
    )
    registry_ca: Path | None = _setting(
        "schema-registry.ssl.ca.location", None, Path,
        "PEM file of the authorities trusted to sign the schema registry's certificate",
    )  # fmt: skip
    registers_schemas: bool = _setting(
        "schema-registry.auto.register.schemas", False, read_flag,
        "register the schema of a sink if its subject does not have it; otherwise the start is refused",
    )  # fmt: skip
    data_dir: Path = _setting(
        "data.dir", Path(), read_folder, "folder that relative source and sink paths start from"
    )
    state_dir: Path = _setting(
        "state.dir", Path(".flowcore"), read_folder, "folder of bounded results, checkpoints and locks"
    )
    umask: int = _setting(
        "files.umask", 0o077, read_umask,
        "permissions that files of a run lack: 077 for its user only, 027 if its group reads, 022 if all do",
    )  # fmt: skip
    trigger_interval: timedelta = _setting(
        "execution.trigger-interval", timedelta(0), parse_duration,
        "micro-batch: time from the start of one batch to the next, 0 for at once",
    )  # fmt: skip
    realtime_batch: timedelta = _setting(
        "execution.realtime.batch-duration", timedelta(minutes=5),
        duration_at_least(5, "Spark refuses a query with a shorter one; pass '5 min'"),
        "realtime: time between two checkpoints, at least 5 s; it is not the latency",
    )  # fmt: skip
    max_batch_records: int = _setting(
        "execution.max-records-per-batch", 5_000_000, read_positive,
        "micro-batch and slice: most records of a source taken into one batch",
    )  # fmt: skip
    flush_interval: timedelta = _setting(
        "execution.flush.max-interval", timedelta(0), parse_duration,
        "longest time that the output of an idempotent operator is buffered, so that only the latest "
        "record of each key is emitted; 0 for none",
    )  # fmt: skip
    backlog_flush_interval: timedelta = _setting(
        "execution.flush.max-interval-during-backlog", timedelta(0), parse_duration,
        "the same in backlog, not shorter; 0 for the end of the backlog",
    )  # fmt: skip
    flush_memory_only: bool = _setting(
        "execution.flush.memory-buffer-only", False, read_flag,
        "buffered output must fit in memory: it is flushed when state.backend.cache.max-entries-num is "
        "reached",
    )  # fmt: skip
    cache_entries: int = _setting(
        "state.backend.cache.max-entries-num", 1_000_000, read_positive,
        "most records that one operator buffers in memory, with execution.flush.memory-buffer-only",
    )  # fmt: skip
    backlog_checkpoints: timedelta | None = _setting(
        "execution.checkpointing.interval-during-backlog", None, parse_duration,
        "longest time between two checkpoints in backlog, at least execution.realtime.batch-duration; 0: "
        "any",
    )  # fmt: skip
    backlog_enter: int = _setting(
        "backlog.enter", 200_000, read_positive,
        "unread records of a partition above which a live query is in backlog and catches up",
    )  # fmt: skip
    backlog_leave: int = _setting(
        "backlog.leave", 50_000, read_number(", 0 or more", 0),
        "unread records of every partition up to which it leaves backlog and is live; below backlog.enter",
    )  # fmt: skip
    stages_at_once: int = _setting(
        "execution.stages-at-once", 4, read_positive,
        "most bounded stages that run side by side; 1 for one after another, as declared",
    )  # fmt: skip
    result_visibility: ResultVisibility = _setting(
        "execution.result-visibility", "whole", read_word("whole", "pipelined"),
        "whole: live queries start after all bounded stages; pipelined: each after those that it joins",
    )  # fmt: skip
    max_broadcast_bytes: int = _setting(
        "execution.join.max-broadcast-bytes", 128 << 20, read_size,
        "most bytes of a bounded result's files that each process keeps in memory, such as 64 MiB; a larger "
        "one is joined by a shuffle, in micro-batches",
    )  # fmt: skip
    shuffle_partitions: int = _setting(
        "execution.shuffle-partitions", 2, read_positive,
        "partitions of a live query's state, fixed when its checkpoint is created",
    )  # fmt: skip
    key_groups: int = _setting(
        "state.key-groups", 16, read_positive,
        "hash buckets of keys in which operators with state by key group keep it, fixed with the checkpoint",
    )  # fmt: skip
    max_cache_bytes: int = _setting(
        "state.cache.max-bytes", 1 << 30, read_size,
        "most decoded state that a Python worker keeps between batches, such as 64 MiB; the rest is read "
        "from the state store",
    )  # fmt: skip
    short_lived: bool = _setting(
        "execution.short-lived", False, read_flag,
        "Spark's JVM compiles quickly instead of well: right for tests, wrong for a stream",
    )  # fmt: skip
    force_timestamp_support: bool = _setting(
        "pipeline.force-timestamp-support", True, read_flag,
        "keep tag and timestamp of stream elements even where no watermark strategy asks for them",
    )  # fmt: skip
    auto_watermark_interval: timedelta = _setting(
        "pipeline.auto-watermark-interval", timedelta(milliseconds=200), parse_duration,
        "time between two polls for a new watermark, 0 for none",
    )  # fmt: skip
    transaction_timeout: timedelta = _setting(
        "delivery.transaction-timeout", timedelta(minutes=5),
        duration_at_least(10, "Kafka would abort transactions that are only slow"),
        "exactly once: longest time in which a slot writes its part of a batch, at least 10 s; the broker's "
        "transaction.max.timeout.ms (15 min) bounds it",
    )  # fmt: skip
    repeat_batch: tuple[str, int] | None = _setting(
        "delivery.repeat-batch", None, read_batch,
        "query:batch that is written whatever the ledger of the query says; for one start",
    )  # fmt: skip
    max_ahead: timedelta = _setting(
        "watermark.max-ahead", timedelta(days=1), parse_duration,
        "most that the event time of a record may be ahead of the clock when it was written, where it "
        "advances watermarks: a record further ahead is bad; 0 for any",
    )  # fmt: skip
    channel_expiry: timedelta = _setting(
        "watermark.channel-expiry", timedelta(0), parse_duration,
        "time after which a channel of a tagged topic that has sent no control element no longer holds event "
        "time, until it sends again; 0 for no limit",
    )  # fmt: skip
    object_reuse: bool = _setting(
        "pipeline.object-reuse", False, read_flag,
        "hand records from one Python function to the next without a copy, whatever they declare",
    )  # fmt: skip
    object_reuse_check: CheckMode = _setting(
        "pipeline.object-reuse-check", "off", read_word("off", "sample", "full"),
        "find Python functions that do not keep their declarations about records: off, sample or full",
    )  # fmt: skip
    latency_interval: timedelta = _setting(
        "metrics.latency.interval", timedelta(0), read_interval,
        "time between two latency markers of a source partition, 0 for none",
    )  # fmt: skip
    metrics_interval: timedelta = _setting(
        "metrics.interval", timedelta(seconds=5), parse_duration,
        "time between two polls of a live run, for listeners and metrics history; 0 for none",
    )  # fmt: skip
    prometheus_ports: range | None = _setting(
        "metrics.prometheus.port", None, read_ports,
        "port where a live run serves metrics to Prometheus, 0 for any that is free; of a range such as "
        "9464-9473 the first that is free",
    )  # fmt: skip
    prometheus_host: str = _setting(
        "metrics.prometheus.host", "127.0.0.1", read_text,
        "address that metrics are served on; 0.0.0.0 is open to other machines, without a password",
    )  # fmt: skip
    dagster_url: str | None = _setting(
        "metrics.dagster.url", None, read_address,
        "address of a Dagster webserver, to which a live run reports as its asset <flow>/live",
    )  # fmt: skip
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Keys that begin with ``spark.``, unchanged. Some are secret, so none is shown."""

    def __post_init__(self) -> None:
        short, long = self.flush_interval, self.backlog_flush_interval
        if timedelta(0) < long < short:
            msg = (
                f"setting execution.flush.max-interval-during-backlog='{show_duration(long)}' is shorter "
                f"than execution.flush.max-interval='{show_duration(short)}': the backlog would be flushed "
                f"more often than live records; set it to '{show_duration(short)}' or more, or to 0 to flush "
                "at the end of the backlog"
            )
            raise SettingsError(msg)

    @classmethod
    def of(
        cls,
        *mappings: Mapping[str, Any],
        file: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
        origin: str = "what was passed",
    ) -> Self:
        """Read settings from a file, the environment, and mappings of key to value; later sources win.

        Args:
            mappings: Documented keys; tables may be nested, as in the file.
            file: A TOML file: ``pipeline.force-timestamp-support = false``, the same as a table, or with
                the whole key in quotes. Default: the file named by the variable ``FLOWCORE_SETTINGS``.
            environment: Default: that of the process.
            origin: Source of the mappings, for error messages.

        Raises:
            SettingsError: A key does not exist (the message suggests the nearest), a value has the wrong
                type, or the file cannot be read; the message names the source.

        >>> Settings.of({"execution.trigger-interval": "2 s"}, environment={}).trigger_interval.seconds
        2
        """
        environment = os.environ if environment is None else environment
        file = environment.get(FILE_VARIABLE) or None if file is None else file
        found: dict[str, Any] = {}
        spark: dict[str, str] = {}
        for key, value, source in (
            *(from_file(Path(file)) if file is not None else ()),
            *from_environment(environment, [*keys(), *_FORMER]),
            *(pair for mapping in mappings for pair in from_mapping(mapping, origin)),
        ):
            if key.startswith("spark."):
                spark[key] = str(value).lower() if isinstance(value, bool) else str(value)
            else:
                found.update(_read(key, value, source))
        return replace(cls(), **found, spark=spark)


def keys() -> dict[str, str]:
    """Every key with its meaning."""
    found = {}
    for setting in _declared():
        key = setting.metadata["key"]
        found[key] = setting.metadata["doc"]
        if "secret" in setting.metadata:
            found[f"{key}{FILE_SUFFIX}"] = f"file with the value of {key}, which is read at each start"
    return found


def secret_keys(given: Settings | None = None) -> list[str]:
    """The keys of flowcore's own secrets, or of those that are given."""
    secrets = [setting for setting in _declared() if "secret" in setting.metadata]
    return [each.metadata["key"] for each in secrets if given is None or getattr(given, each.name)]


def _declared() -> Iterator[Field[Any]]:
    return (setting for setting in fields(Settings) if "key" in setting.metadata)


def _read(key: str, value: Any, source: str) -> dict[str, Any]:
    for setting in _declared():
        known, secret = setting.metadata["key"], "secret" in setting.metadata
        if secret and key == f"{known}{FILE_SUFFIX}":
            return {setting.name: read_secret(key, value, source)}
        if key == known:
            try:
                return {setting.name: setting.metadata["read"](value)}
            except (ValueError, TypeError, OverflowError) as error:
                shown = key if secret else f"{key}={hide_login(value)!r}"
                msg = f"setting {shown} cannot be used (from {source}): {error} ({setting.metadata['doc']})"
                raise SettingsError(msg) from (None if secret else error)
    near = [_FORMER[key]] if key in _FORMER else difflib.get_close_matches(key, keys(), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"the keys are {', '.join(keys())}, and spark.*"
    msg = f"setting {key} does not exist (from {source}): it would have no effect; {hint}"
    raise SettingsError(msg)
