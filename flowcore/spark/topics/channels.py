"""Which channels of a tagged topic count, as SQL text.

Anyone who may write to a topic may forge channels. Forged control elements are refused in the JVM, so that a
flood of them costs no Python. The length of a channel's name is bounded.
"""

from collections.abc import Iterator

from flowcore.api.connectors import LONGEST_CHANNEL, KafkaTopic
from flowcore.kafka.elements import CHANNEL_HEADER
from flowcore.spark.frame.sql import literal, visible
from flowcore.spark.topics import elements

__all__ = ["refused_channels"]

_SHOWN = 100


def refused_channels(
    topic: KafkaTopic, element: str, channel: str, own: str | None = None
) -> Iterator[tuple[str, str]]:
    """When a control element does not count because of its channel, and the reason, as SQL text.

    Args:
        element: The bytes of a control element.
        channel: The name of its channel; null without one.
        own: How the channels of the flow begin, if the flow writes the topic itself, for a cut.
    """
    what = f"'is ', {elements.show_control(element)}"
    if topic.channels is None:
        size = f"octet_length({channel})"
        longer = f" bytes, more than {LONGEST_CHANNEL}: it does not count; give its writer a shorter name"
        reason = f"concat({what}, ' of a channel whose name has ', {size}, {literal(longer)})"
        yield f"{size} > {LONGEST_CHANNEL}", reason
        garbled = " of a channel whose name is not UTF-8: it does not count; write the name as text"
        yield f"NOT is_valid_utf8({channel})", f"concat({what}, {literal(garbled)})"
        if topic.until is None and not topic.signed:  # a table has no event time that could end
            unproven = (
                f", and neither are the channels of topic {topic.name!r} declared, nor are its control "
                "elements signed: it does not count, since anyone who may write to the topic could end event "
                "time; if its writer is to be trusted, declare channels=, or let it sign (signed=True)"
            )
            is_own = "" if own is None else f" AND NOT startswith(coalesce({channel}, ''), {literal(own)})"
            yield f"{elements.is_end(element)}{is_own}", f"concat({what}, {literal(unproven)})"
        return
    nameless = (
        f" without the header {CHANNEL_HEADER}, and the channels of topic {topic.name!r} are declared: it "
        "does not count; write the header, or leave channels= out"
    )
    yield f"coalesce({channel}, '') = ''", f"concat({what}, {literal(nameless)})"
    shown = visible(f"make_valid_utf8(substring({channel}, 1, {_SHOWN}))")
    other = (
        f"', which is not among the declared channels of topic {topic.name!r}: it does not count; add it to "
        "channels= if its writer is to be trusted"
    )
    named = literal(" of channel '")
    reason = f"concat({what}, {named}, {shown}, {literal(other)})"
    yield f"{channel} NOT IN ({', '.join(map(literal, topic.channels))})", reason
