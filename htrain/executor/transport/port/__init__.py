"""Ports: the only door to ZeroMQ. An Inbox receives, an Outbox sends; each belongs to one thread at a time.

Queues of senders are unbounded: the protocol bounds them, since a step sends a fixed number of messages and then waits. What an inbox takes of one
connection is bounded, since anybody may be at its other end. A message begins with the token of its run's try: one without it is a stranger's. It is
counted and dropped before anything of it is decoded. Between hosts, messages are numbered, and sent again where their connection breaks.
"""

from htrain.executor.transport.port.inbox import Inbox
from htrain.executor.transport.port.keys import Keys, new_token
from htrain.executor.transport.port.network import Network
from htrain.executor.transport.port.outbox import SEND_SECONDS, Outbox, sent_by_role

__all__ = ["SEND_SECONDS", "Inbox", "Keys", "Network", "Outbox", "new_token", "sent_by_role"]
