"""Every exception that flowcore raises on purpose.

FlowcoreError
+-- ConfigurationError (also ValueError)   the program as written cannot work
|   +-- FlowNotFoundError                  a MODULE:FLOW of another form, or of no module
|   +-- SchemaError                        a schema or an expression that cannot be read
|   +-- PlanError                          a flow whose operators contradict each other
|   +-- SettingsError                      an unknown setting, or a value it cannot take
|   +-- ElementError                       a stream element whose values are out of range
|   +-- FormatError                        a value format that is unknown, or does not fit its schema
|   +-- InvalidWindowError                 windows, triggers or evictors that cannot work
+-- InstallationError                      something that flowcore needs is missing on this machine
+-- OutageError                            a run misses something that may come back: it may start again
|   +-- UnreachableBrokerError (also BrokerError)  a broker does not answer
|   +-- UnreachableRegistryError (also RegistryError)  a schema registry does not answer
|   +-- DiskFullError (also RunError)      a file cannot be written, since there is no space
|   +-- ExpiredLeaseError (also RunError)  leases could not be renewed in time
|   +-- LoweredLimitError (also RunError)  a topic takes smaller messages than before
|   +-- MissingStateError (also StateError)  the folder of the checkpoints is gone
+-- ResultError                            a bounded result is missing, half-written or changed
+-- BrokerError                            Kafka cannot be started or reached
|   +-- BrokerAccessError                  a broker refuses a login or a permission, or is not trusted
+-- RegistryError                          a schema registry refuses, or its schemas do not fit a topic
+-- SerializationError                     bytes or a value that a serializer refuses
|   +-- OnlyRecordsError                   anything but a record, handed to a value-only serializer
+-- NoTimestampError                       the timestamp of a record that has none was read
+-- StateError                             state that this operator cannot restore
|   +-- DamagedCheckpointError             a file of a checkpoint that cannot be read
+-- RunError                               a stage or a live query failed while it ran
    +-- DeliveryError                      a batch that cannot be delivered exactly once
    +-- LostRecordsError                   a topic has removed records that a query has not read
    +-- FunctionError                      a user's function raised, or emitted a wrong record
    +-- ObjectReuseError                   a user's function broke its promise about records

A message names the values as given, what is wrong with them, what would happen, and what to do
instead. It is one string, so that it survives Spark and pickling.
"""

from typing import Self

from flowcore.escaping import printable_lines

__all__ = [
    "BrokerAccessError",
    "BrokerError",
    "ConfigurationError",
    "DamagedCheckpointError",
    "DeliveryError",
    "DiskFullError",
    "ElementError",
    "ExpiredLeaseError",
    "FlowNotFoundError",
    "FlowcoreError",
    "FormatError",
    "FunctionError",
    "InstallationError",
    "InvalidWindowError",
    "LostRecordsError",
    "LoweredLimitError",
    "MissingStateError",
    "NoTimestampError",
    "ObjectReuseError",
    "OnlyRecordsError",
    "OutageError",
    "PlanError",
    "RegistryError",
    "ResultError",
    "RunError",
    "SchemaError",
    "SerializationError",
    "SettingsError",
    "StateError",
    "UnreachableBrokerError",
    "UnreachableRegistryError",
]


class FlowcoreError(Exception):
    """Base class; catch this to catch anything flowcore raises on purpose.

    Its text is shown by others too, in tracebacks and logs: what a terminal obeys is in it as escapes.
    """

    def __str__(self) -> str:
        return printable_lines(super().__str__())


class ConfigurationError(FlowcoreError, ValueError):
    """A parameter, or a combination of parameters, that can never work."""


class FlowNotFoundError(ConfigurationError):
    """A ``MODULE:FLOW`` that has another form, or names no module; what a module declares is not meant."""


class SchemaError(ConfigurationError):
    """A schema or an expression that cannot be parsed or resolved."""


class PlanError(ConfigurationError):
    """A flow whose operators contradict each other."""


class SettingsError(ConfigurationError):
    """A setting that does not exist, or a value it cannot take."""


class ElementError(ConfigurationError):
    """A stream element with a value that no serializer could write."""


class FormatError(ConfigurationError):
    """A value format that is unknown, cannot hold its schema, or differs from the one of the writer."""


class InvalidWindowError(ConfigurationError):
    """Windows, triggers or evictors whose parameters contradict what they promise."""


class InstallationError(FlowcoreError):
    """Something that flowcore needs is missing on this machine; the message has the command to install it."""


class OutageError(FlowcoreError):
    """Something outside of the flow is unavailable for a time; a run may start again, however often."""


class ResultError(FlowcoreError):
    """A bounded result that is missing, half-written, or different from its manifest."""


class BrokerError(FlowcoreError):
    """A Kafka broker or topic that cannot be started, reached or used."""


class BrokerAccessError(BrokerError):
    """A broker that refuses a login or a permission, or that is not trusted: a new start fails as well."""


class UnreachableBrokerError(OutageError, BrokerError):
    """A Kafka broker that does not answer in time."""


class RegistryError(FlowcoreError):
    """A schema registry that refuses a request, or whose schemas do not fit a topic of the flow."""


class UnreachableRegistryError(OutageError, RegistryError):
    """A schema registry that does not answer in time."""


class SerializationError(FlowcoreError):
    """Bytes or a value that a serializer refuses; the message names coordinates if they are known."""

    @classmethod
    def at(cls, where: str, what: str, advice: str) -> Self:
        """The error of bytes that cannot be read.

        Args:
            where: Coordinates such as ``clicks[3]@812``, or what the bytes are.
            what: What is wrong with the bytes.
            advice: What would have happened, or what to do.
        """
        return cls(f"{where} {what}: {advice}")


class OnlyRecordsError(SerializationError):
    """A stream element other than a record was handed to a value-only serializer."""


class NoTimestampError(FlowcoreError):
    """The timestamp of a record that was read without one."""


class StateError(FlowcoreError):
    """State of another version or of another operator, which cannot be restored."""


class MissingStateError(OutageError, StateError):
    """The folder of the checkpoints is gone, as if its disk were not mounted."""


class DamagedCheckpointError(StateError):
    """A file of a checkpoint that cannot be read; the message names it, and the ways to continue."""


class RunError(FlowcoreError):
    """A stage or a live query that failed while it ran; the message names flow, stage and operator."""


class DiskFullError(OutageError, RunError):
    """A file that cannot be written: its disk is full, or its file system is read-only or fails."""


class ExpiredLeaseError(OutageError, RunError):
    """The leases of a run that could not be renewed in time, so that it does not write any more."""


class LoweredLimitError(OutageError, RunError):
    """A topic that takes smaller messages than when a run began; the next start takes the new limit."""


class LostRecordsError(RunError):
    """A topic has removed records that a query has not read, or ends before what it has read."""


class DeliveryError(RunError):
    """A batch that cannot be delivered exactly once: the ledger of its query says something else."""


class FunctionError(RunError):
    """A user's function that raised, or emitted no record of its schema; the message names the operator.

    Attributes:
        operator: The operator's name, if it is known.
        number: Index of the record in its batch, in the worker that raised; None if it is not known.
    """

    operator: str | None = None
    number: int | None = None


class ObjectReuseError(RunError):
    """A user's function that changed or kept a record against its promise; the message names both."""
