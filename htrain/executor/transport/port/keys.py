"""What the processes of one run have in common, and nobody else knows."""

import secrets
from hashlib import blake2b
from typing import NamedTuple

import zmq
from zmq.utils import z85

TOKEN_BYTES = 16


class Keys(NamedTuple):
    """What the processes of one run have in common, and nobody else knows, in Z85: a key pair of CurveZMQ.

    Whoever does not know the public one cannot begin a handshake, in which it does not cross the network in the clear: it is the run's secret, as much as the
    other.
    """

    public: bytes
    secret: bytes

    @classmethod
    def new(cls) -> "Keys":
        """Those of a new run."""
        return cls(*zmq.curve_keypair())

    @classmethod
    def of(cls, secret: bytes) -> "Keys":
        """Those that everybody finds who knows a secret."""
        own = z85.encode(blake2b(secret, digest_size=32, person=b"htrain secret").digest())
        return cls(zmq.curve_public(own), own)

    @property
    def token(self) -> bytes:
        """What messages begin with, among those who have these keys."""
        return blake2b(self.secret, digest_size=TOKEN_BYTES, person=b"htrain token").digest()


def new_token() -> bytes:
    """That of a new try: nobody guesses it, and no message of another try begins with it."""
    return secrets.token_bytes(TOKEN_BYTES)


def numbered(token: bytes) -> bytes:
    """What numbered messages begin with, in place of the token."""
    return blake2b(token, digest_size=TOKEN_BYTES, person=b"htrain numbered").digest()
