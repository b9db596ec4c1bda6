"""Secrets among the settings, and the places from which their values may come.

No message contains the value of a secret, or of a key that does not exist: it may be a secret's, mistyped. A
command line does not take secrets, since every user of the machine can read it.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flowcore.errors import SettingsError

__all__ = [
    "FILE_SUFFIX", "SECRET_VALUES", "SPARK_SECRETS", "hide_login", "is_spark_secret", "read_secret",
    "refuse_secrets",
]  # fmt: skip

FILE_SUFFIX = ".file"
"""``kafka.sasl.password.file`` names a file with the value of ``kafka.sasl.password``."""

SPARK_SECRETS = (
    "secret|passw|passphrase|token|(?<!renewal)[._]credentials?$|jaas|header[.]authorization|[._](pass|pwd|auth)$"
    "|access[._]?key|api[._]?key|account[.]key|private[.]key|keystore[.]key|encryption[.]key$|azure[.]sas[.]"
)
"""Matches the keys of Spark's secrets: Spark's own default pattern, and keys of stores and services."""
SECRET_VALUES = "private key|passw(or)?d *=|://[^/@ ]*:[^/@ ]*@"  # noqa: S105 - a pattern
"""Matches values with a secret in them, whatever their key: a key as PEM text, or a login."""

# A key that ends with .file or .path only names a place.
_SPARK_SECRET = re.compile(rf"(?i)spark\..*({SPARK_SECRETS})(?!.*\.(file|path)$)")
_SECRET_VALUE = re.compile(f"(?i){SECRET_VALUES}")


def is_spark_secret(key: str, value: object = "") -> bool:
    """Whether the value of a key of Spark's is secret, by its name or as it looks.

    >>> is_spark_secret("spark.authenticate.secret"), is_spark_secret("spark.authenticate.secret.file")
    (True, False)
    >>> is_spark_secret("spark.mongodb.read.connection.uri", "mongodb://ann:s3cret@host")
    True
    """
    if _SPARK_SECRET.match(key):
        return True
    return key.startswith("spark.") and _SECRET_VALUE.search(str(value)) is not None


def hide_login(value: object) -> object:
    """A value for a message: without the name and password of an address.

    >>> hide_login("http://ann:s3cret@host:3000")
    'http://...@host:3000'
    """
    return re.sub(r"(?<=://).*@", "...@", value) if isinstance(value, str) else value


def read_secret(key: str, path: Any, source: str) -> str:
    """The secret in a file, without the end of its last line.

    Raises:
        SettingsError: The file cannot be read, or is empty.
    """
    try:
        found = Path(path).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
        why = "" if found else "it is empty"
    except (OSError, ValueError, TypeError) as error:
        found, why = "", getattr(error, "strerror", None) or "it is not text, or its name is not a path"
    if why:
        # What names no file may be the secret itself.
        shown = f"={str(path)!r}" if os.path.exists(str(path)) else ""  # noqa: PTH110 - false for any text
        msg = (
            f"setting {key}{shown} cannot be used (from {source}): {why}: the login would fail; pass the "
            f"path of a file that has the value of {key.removesuffix(FILE_SUFFIX)} and nothing else"
        )
        raise SettingsError(msg)
    return found


def refuse_secrets(given: Mapping[str, object], secret_keys: Iterable[str], place: str, readers: str) -> None:
    """Refuse keys of secrets in a place where others can read their values.

    Args:
        given: What is given there, by key.
        secret_keys: The keys of flowcore's own secrets.
        place: What was given there, as in ``--set``.
        readers: Who can read it there, as in ``every user of this machine``.

    Raises:
        SettingsError: A key is that of a secret; the message names other ways to pass it.
    """
    own = set(secret_keys)
    for key, value in given.items():
        if key in own:
            variable = f"FLOWCORE_{re.sub('[.-]', '_', key).upper()}"
            way = f"set the variable {variable}, or name a file with it by {key}{FILE_SUFFIX}"
        elif is_spark_secret(key, value):
            way = "write it to a settings file that only you can read, and name that by FLOWCORE_SETTINGS"
        else:
            continue
        msg = f"setting {key} is a secret, and is given by {place}: {readers} could read it there; {way}"
        raise SettingsError(msg)
