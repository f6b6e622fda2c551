"""HET as its pseudo-code has it, over dictionaries: Algorithms 1 to 3 and section 3.1, a key at a time.

Read is cut into what the worker asks, what the server says at one moment, and what the worker hears. Two lines are not the paper's, for a
batch that is asked for ahead: CheckValid counts the write that is under way, which then lands on the row that was fetched; and a row that
its server finds stale is evicted with the worker's next message, while its worker sees it evicted at once.
"""

from dataclasses import dataclass, field

import numpy as np

from htrain.sync.row_steps import SparseStep

EPS = 1e-6
LR = 0.1


BETA, L1, L2 = 1.0, 0.2, 0.1  # of FTRL


def step(kind: str, row: np.ndarray, state: np.ndarray, grad: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One optimizer step."""
    if kind == "sgd":
        return row - LR * grad, state
    if kind == "ftrl":
        return _ftrl(row, state, grad)
    state = state + (grad**2 if kind == "adagrad" else np.mean(grad**2))
    return row - LR * grad / (np.sqrt(state) + EPS), state


def _ftrl(row: np.ndarray, state: np.ndarray, grad: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A step of FTRL (McMahan et al. 2013, Algorithm 1); z of a row that has not been stepped is what gives its values."""
    z, n = np.split(state, 2)
    z = np.where(n == 0, -row * (BETA / LR + L2) - np.sign(row) * L1, z)
    z = z + grad - (np.sqrt(n + grad**2) - np.sqrt(n)) / LR * row
    n = n + grad**2
    stepped = -(z - np.sign(z) * L1) / ((BETA + np.sqrt(n)) / LR + L2)
    return np.where(np.abs(z) <= L1, 0.0, stepped), np.concatenate([z, n])


def sparse_step(kind: str) -> SparseStep:
    """What htrain calls it."""
    return SparseStep(kind, LR, EPS, beta=BETA, l1=L1, l2=L2)


@dataclass
class Evicted:
    key: int
    grad: np.ndarray
    clock: int


@dataclass
class Server:
    """Global rows, their optimizer's state, and their clocks c_g."""

    kind: str
    rows: dict[int, np.ndarray]
    states: dict[int, np.ndarray]
    clocks: dict[int, int]

    def evict(self, evicted: Evicted) -> None:
        key = evicted.key
        self.rows[key], self.states[key] = step(self.kind, self.rows[key], self.states[key], evicted.grad)
        self.clocks[key] = max(self.clocks[key], evicted.clock)


@dataclass
class Replica:
    """A cached row: as fetched, what was accumulated since, start and current clock."""

    row: np.ndarray
    state: np.ndarray
    grad: np.ndarray
    start: int
    current: int


@dataclass
class Worker:
    """One client. `mail` is what it has evicted and not sent, `sent` what is on its way with the keys that are asked for and checked;
    `answers` are the rows on their way back, those of `stale` because the server refused them."""

    server: Server
    staleness: int
    cache: dict[int, Replica] = field(default_factory=dict)
    mail: list[Evicted] = field(default_factory=list)
    sent: list[Evicted] = field(default_factory=list)
    fetched: list[int] = field(default_factory=list)
    checked: dict[int, int] = field(default_factory=dict)
    answers: dict[int, tuple[np.ndarray, np.ndarray, int]] = field(default_factory=dict)
    stale: set[int] = field(default_factory=set)

    def evict(self, key: int) -> None:
        """Het.Cache.Evict(key): what a row has accumulated and its clock go to the server, where there is something."""
        replica = self.cache[key]
        if replica.current > replica.start:
            self.mail.append(Evicted(key, replica.grad, replica.current))
        replica.grad, replica.start = np.zeros_like(replica.grad), replica.current

    def drop(self, keys: list[int]) -> None:
        """Het.Cache.Evict(): what the policy gives up."""
        for key in keys:
            self.evict(key)
            del self.cache[key]

    def ask(self, keys: list[int], under_way: set[int], dropped: list[int]) -> None:
        """Het.Read: CheckValid as far as the worker knows; the message leaves."""
        self.fetched, self.checked = [], {}
        for key in keys:
            replica = self.cache.get(key)
            if replica and replica.current + (key in under_way) <= replica.start + self.staleness:
                self.checked[key] = replica.current + (key in under_way)
                continue
            if replica:
                self.evict(key)
            self.fetched.append(key)
        self.drop(dropped)
        self.sent, self.mail = self.mail, []

    def reach_server(self) -> None:
        """The message arrives: evictions, then Fetch, and CheckValid's second condition."""
        for evicted in self.sent:
            self.server.evict(evicted)
        self.stale = {key for key, clock in self.checked.items() if self.server.clocks[key] > clock + self.staleness}
        for key in (*self.fetched, *self.stale):
            self.answers[key] = self.server.rows[key], self.server.states[key], self.server.clocks[key]

    def hear(self) -> None:
        """The answer arrives."""
        for key, (row, state, clock) in self.answers.items():
            replica = self.cache.setdefault(key, Replica(row, state, np.zeros_like(row), 0, 0))
            if key in self.stale:
                if replica.current > replica.start:
                    row, state = step(self.server.kind, row, state, replica.grad)
                self.evict(key)
            replica.row, replica.state = row, state
            replica.start, replica.current = clock, clock + replica.current - replica.start
        self.answers, self.stale = {}, set()

    def get(self, key: int) -> np.ndarray:
        replica = self.cache[key]
        return step(self.server.kind, replica.row, replica.state, replica.grad)[0]

    def write(self, key: int, grad: np.ndarray) -> None:
        replica = self.cache[key]
        replica.grad = replica.grad + grad
        replica.current += 1

    def flush(self) -> None:
        """Every update is sent, those of rows that a batch has read included; rows stay, as the server makes them, with their clocks."""
        for key, replica in self.cache.items():
            if replica.grad.any():
                self.mail.append(Evicted(key, replica.grad, replica.current))
                replica.row, replica.state = step(self.server.kind, replica.row, replica.state, replica.grad)
                replica.grad = np.zeros_like(replica.grad)
        self.fetched, self.checked = [], {}
        self.sent, self.mail = self.mail, []
        self.reach_server()
