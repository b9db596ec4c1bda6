"""The version of stored state, which is checked before anything is read."""

from flowcore.errors import StateError

__all__ = ["require_version", "strip_version"]


def require_version(what: str, version: object, known: int) -> None:
    """Require the version that this flowcore reads.

    Args:
        what: What has this version.

    Raises:
        StateError: The version is another one.
    """
    if version != known:
        msg = (
            f"{what} of version {version!r}, this flowcore reads {known}: it would be misread; run the "
            "flowcore that wrote it, or start a new checkpoint"
        )
        raise StateError(msg)


def strip_version(what: str, piece: bytes, known: int) -> bytes:
    """The content of a piece of state after its first byte, which is its version.

    Raises:
        StateError: The piece has another version, or none.
    """
    require_version(what, piece[0] if piece else None, known)
    return piece[1:]
