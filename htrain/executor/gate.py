"""How a replica passes the staleness gate of its group: a gate in its own process, or one on the group's first PS."""

import threading
from collections.abc import Sequence
from typing import Protocol

from htrain.errors import PeerLost
from htrain.executor.port import Outbox
from htrain.executor.wire import Context, GateGrant, GateRequest
from htrain.sync.staleness import Grant, Phase, StalenessGate


class Gate(Protocol):
    """One replica's view. A request that is not answered at once comes back as a GateGrant to the replica's inbox."""

    def begin(self, context: Context) -> bool: ...

    def commit(self, context: Context) -> bool: ...

    def end(self, context: Context) -> None: ...


class OpenGate:
    """No gate: plain Hogwild."""

    def begin(self, context: Context) -> bool:
        return True

    def commit(self, context: Context) -> bool:
        return True

    def end(self, context: Context) -> None:
        return


class LocalGate:
    """The gate of a group with one trainer, shared by its replicas' threads: commit blocks."""

    def __init__(self, bound: int, deadline_seconds: float) -> None:
        self._gate: StalenessGate[Context] = StalenessGate(bound)
        self._condition = threading.Condition()
        self._granted: set[Context] = set()
        self._deadline_seconds = deadline_seconds

    def begin(self, context: Context) -> bool:
        with self._condition:
            self._gate.begin(context)
        return True

    def commit(self, context: Context) -> bool:
        with self._condition:
            self._take(self._gate.commit(context))
            if not self._condition.wait_for(lambda: context in self._granted, self._deadline_seconds):
                raise PeerLost(f"step {context.step} of replica {context.replica} waited {self._deadline_seconds:.0f} s for slower replicas to end their step")
            self._granted.discard(context)
        return True

    def end(self, context: Context) -> None:
        with self._condition:
            self._take(self._gate.end(context))

    def _take(self, grants: Sequence[Grant[Context]]) -> None:
        if grants:
            self._granted.update(grant.context for grant in grants)
            self._condition.notify_all()


class RemoteGate:
    """The gate of a group with several trainers, on `keeper`, the group's first PS."""

    def __init__(self, endpoint: str, keeper: str, outbox: Outbox) -> None:
        self._endpoint = endpoint
        self._keeper = keeper
        self._outbox = outbox

    def begin(self, context: Context) -> bool:
        self._outbox.send(self._keeper, GateRequest(self._endpoint, context, "begin"))
        return False

    def commit(self, context: Context) -> bool:
        self._outbox.send(self._keeper, GateRequest(self._endpoint, context, "commit"))
        return False

    def end(self, context: Context) -> None:
        self._outbox.send(self._keeper, GateRequest(self._endpoint, context, "end"))


class GateKeeper:
    """The gate's side on the group PS: requests in, grants out."""

    def __init__(self, bound: int) -> None:
        self._gate: StalenessGate[Context] = StalenessGate(bound)
        self._endpoints: dict[Context, str] = {}

    def on_request(self, request: GateRequest, outbox: Outbox) -> None:
        context = request.context
        if request.action == "begin":
            self._endpoints[context] = request.source
            self._tell(self._gate.begin(context), outbox)
        elif request.action == "commit":
            self._tell(self._gate.commit(context), outbox)
        else:
            del self._endpoints[context]
            self._tell(self._gate.end(context), outbox)

    def _tell(self, grants: Sequence[Grant[Context]], outbox: Outbox) -> None:
        for grant in grants:
            action = "begin" if grant.phase is Phase.READING else "commit"
            outbox.send(self._endpoints[grant.context], GateGrant(grant.context, action))
