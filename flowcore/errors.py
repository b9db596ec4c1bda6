"""Every exception flowcore raises on purpose.

FlowcoreError
+-- ConfigurationError (also ValueError)   the program as written cannot work
|   +-- SchemaError                        a schema or an expression that cannot be read
|   +-- PlanError                          a flow whose operators contradict each other
|   +-- SettingsError                      an unknown setting, or a value it cannot take
|   +-- ElementError                       a stream element whose values are out of range
|   +-- FormatError                        a value format that is unknown, or does not fit its schema
|   +-- InvalidWindowError                 windows, triggers or evictors that cannot work
+-- InstallationError                      something this machine needs is missing
+-- ResultError                            a bounded result is missing, half-written or changed
+-- BrokerError                            Kafka cannot be started or reached
+-- SerializationError                     bytes or a value that a serializer refuses
|   +-- OnlyRecordsError                   anything but a record, handed to a value-only serializer
+-- NoTimestampError                       a timestamp is asked of a record that cannot have one
+-- StateError                             kept state that this operator cannot go on from
+-- RunError                               a stage or a live query failed while it ran
    +-- FunctionError                      a user's function raised, or emitted what it may not
    +-- ObjectReuseError                   a user's function broke what it promised of its records

A message names the values as given, what is wrong with them, what would happen, and what to do
instead. It is one string, so that it survives the way through Spark and through pickling.
"""

from __future__ import annotations

__all__ = [
    "BrokerError",
    "ConfigurationError",
    "ElementError",
    "FlowcoreError",
    "FormatError",
    "FunctionError",
    "InstallationError",
    "InvalidWindowError",
    "NoTimestampError",
    "ObjectReuseError",
    "OnlyRecordsError",
    "PlanError",
    "ResultError",
    "RunError",
    "SchemaError",
    "SerializationError",
    "SettingsError",
    "StateError",
]


class FlowcoreError(Exception):
    """Base class; catch this to catch anything flowcore raises on purpose."""


class ConfigurationError(FlowcoreError, ValueError):
    """A parameter, or a combination of parameters, that can never work."""


class SchemaError(ConfigurationError):
    """A schema or an expression that cannot be parsed or resolved."""


class PlanError(ConfigurationError):
    """A flow whose operators contradict each other."""


class SettingsError(ConfigurationError):
    """A setting that does not exist, or a value it cannot take."""


class ElementError(ConfigurationError):
    """A stream element with a value that no serializer could write."""


class FormatError(ConfigurationError):
    """A value format that is unknown, cannot hold its schema, or is not the one that was written with."""


class InvalidWindowError(ConfigurationError):
    """Windows, triggers or evictors whose parameters contradict what they promise."""


class InstallationError(FlowcoreError):
    """Something flowcore needs is not on this machine; the message holds the command that mends it."""


class ResultError(FlowcoreError):
    """A bounded result that is missing, half-written, or no longer what its manifest says."""


class BrokerError(FlowcoreError):
    """A Kafka broker or topic that cannot be started, reached or used."""


class SerializationError(FlowcoreError):
    """Bytes or a value that a serializer refuses; the message names coordinates where they are known."""


class OnlyRecordsError(SerializationError):
    """A stream element other than a record was handed to a value-only serializer."""


class NoTimestampError(FlowcoreError):
    """The timestamp was asked of a record that was read without one."""


class StateError(FlowcoreError):
    """Kept state of another version or of another operator; going on from it would be wrong."""


class RunError(FlowcoreError):
    """A stage or a live query that failed while it ran; the message names flow, stage and operator."""


class FunctionError(RunError):
    """A user's function that raised, or emitted no record of its schema; the message names the operator.

    Attributes:
        operator: The operator's name, where it is known.
        number: Which record of the batch it was, in the worker that raised it; None where nobody can tell.
    """

    operator: str | None = None
    number: int | None = None


class ObjectReuseError(RunError):
    """A user's function that changed or kept a record against its promise; the message names both."""
