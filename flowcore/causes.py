"""The errors that led to an error, as Python keeps them."""

from collections.abc import Iterator

__all__ = ["causes_of"]


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """An error, the one that it was made of or that was handled when it came, and so on."""
    seen: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in seen:  # an error that is raised again may be its own cause
        yield each
        seen.append(each)
        each = each.__cause__ or each.__context__
