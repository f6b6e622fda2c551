"""What a role has sent to each of the others, in its report: packed until somebody reads it.

A role of a thousand has hundreds of peers, reports every few seconds, and is read every hundred: taking these lists apart was a third of a launcher's work.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from htrain.decoding import msgpack_decoder

SENT_TO = "sent_to"  # of a report
_READER = msgpack_decoder(dict[str, int])


def packed(num_bytes: Mapping[str, int]) -> bytes:
    """Bytes by peer, as a report has them."""
    return msgspec.msgpack.encode(num_bytes)


def sent_in(report: Mapping[str, Any]) -> dict[str, int]:
    """Bytes by peer of a report, packed, or as its line in metrics.jsonl has them; none where it does not say, or what it says is damaged."""
    found = report.get(SENT_TO, {})
    if isinstance(found, Mapping):
        return dict(found)
    try:
        return _READER.decode(found)
    except (msgspec.MsgspecError, TypeError):
        return {}
