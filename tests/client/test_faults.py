"""Strangers, workers that vanish or come twice, servers that were started again: each a clear error, or training goes on."""

import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import zmq
from attacks import fuzzed
from serving import TOKEN, Kind, Serve

from htrain.client import link as client_link
from htrain.client.connecting import connect
from htrain.client.modules import HetEmbedding
from htrain.client.tables import Tables
from htrain.errors import PeerLost, RunError, UsageError
from htrain.membership.messages import Ask, Beat, Join, Leave, Look, Refused, encode, from_server
from htrain.membership.served import FILE, Address
from htrain.membership.sockets import Caller
from htrain.sync.request import Request

TABLE = {"a": np.zeros((50, 4), np.float32)}


def train(tables: Tables, *ids: int) -> None:
    HetEmbedding(tables, "a")(torch.tensor(ids)).sum().backward()
    tables.step()


def wait_until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def told(servers: Serve) -> str:
    return "\n".join(servers.members[0].report()["news"])


def test_a_worker_whose_beats_have_ended_is_told_as_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers would give it up, and it would hear of that alone."""
    with Serve(TABLE, Kind(staleness=0), lease_seconds=1.0) as servers, servers.connect() as tables:

        def fail(*_: object) -> None:
            raise OSError("no more files")

        def go_on() -> None:
            end = time.monotonic() + 60
            while time.monotonic() < end:
                train(tables, *range(50))

        monkeypatch.setattr(client_link, "Beat", fail)
        with pytest.raises(RunError, match="its beats: OSError: no more files"):
            go_on()


def test_a_stranger_is_turned_away_and_counted() -> None:
    with Serve(TABLE) as servers:
        with pytest.raises(RunError, match=r"the token is not the one of this server: it stands in serving.json"):
            connect(f"127.0.0.1:{servers.ports[0]}", token="guessed")
        caller = Caller([servers.members[0].address])
        for frames in (
            [b""],
            [b"\xff\x00junk"],
            [b"\x91\xa4none", b"x" * 100],
            encode(Join(1, "word", "w" * 5000, 1, "")),
        ):
            caller.send(0, frames)
        caller.send(0, encode(Ask(77, 1, [(0, 0, 0)], [8], False), [np.empty(0)] * 3))
        got = caller.receive(5.0)
        assert got
        refused = from_server(got[1][0])
        assert isinstance(refused, Refused)
        assert refused.kind == "member"
        caller.close()
        with servers.connect() as tables:
            train(tables, 1)
        assert servers.members[0].counts.strangers == 5
    np.testing.assert_allclose(servers.table("a")[:3, 0], [0, -0.1, 0], rtol=1e-6)


def test_what_strangers_say_while_servers_are_at_rest_is_not_kept() -> None:
    with Serve(TABLE) as servers:
        member = servers.members[0]
        member.pause()
        caller = Caller([member.address])
        for number in range(300):
            caller.send(0, encode(Ask(77, number + 1, [(0, 0, 0)], [8], False), [np.empty(0)] * 3))
            caller.send(0, [b"junk"])
            caller.send(0, encode(Join(1, "guessed", "a", 77, "")))
        wait_until(lambda: member.counts.strangers == 600)
        assert not member._held
        member.resume()
        with servers.connect() as tables:
            train(tables, 1)
        caller.close()


def test_a_name_that_is_not_known_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for like any other server: names come and go with pods."""

    def unknown(name: str) -> str:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "gethostbyname", unknown)
    wanted = (
        r"^tcp://nosuch:7400 did not answer within 0.5 s: the name nosuch is not known here \(Name or .*\); is 'htrain"
    )
    with pytest.raises(PeerLost, match=wanted):
        connect("nosuch:7400", token="word", deadline_seconds=0.5)


def test_who_asks_and_never_reads_loses_answers_and_nobody_keeps_them() -> None:
    asks = 60_000
    with Serve(TABLE) as servers:
        context = zmq.Context()
        stranger = context.socket(zmq.DEALER)
        for option, value in ((zmq.RCVHWM, 1), (zmq.SNDHWM, 0), (zmq.RCVBUF, 4096), (zmq.RCVTIMEO, 1000)):
            stranger.set(option, value)
        stranger.connect(servers.members[0].address)
        frames = encode(Ask(77, 1, [(0, 0, 0)], [8], False), [np.empty(0)] * 3)
        each = sum(len(bytes(frame)) for frame in frames)
        for _ in range(asks):
            stranger.send_multipart(frames)
        wait_until(lambda: servers.members[0].counts.bytes_received == asks * each, 30.0)
        answers = 0
        with contextlib.suppress(zmq.Again):
            while stranger.recv():
                answers += 1
        assert 0 < answers < asks
        context.destroy(linger=0)
        with servers.connect() as tables:
            train(tables, 1)


def test_fuzzed_messages_of_strangers_and_of_members_end_no_server() -> None:
    """Those that join have the token, and a number that messages go on from."""
    keys, clocks, gradients = np.arange(3, dtype=np.int32), np.zeros(2, np.int32), np.ones((1, 4), np.float32)
    ask = encode(Ask(5, 1, [(1, 1, 1)], [4], False), [keys, clocks, gradients])
    said = [encode(Join(1, "word", "a", 5, "here")), ask, encode(Look(5, 1, [3]), [keys.astype(np.int64)])]
    said += [encode(each) for each in (Beat(5, 3), Leave(5))]
    messages = [[bytes(frame) for frame in frames] for frames in said]
    with Serve(TABLE) as servers:
        member, caller = servers.members[0], Caller([servers.members[0].address])
        for number, frames in enumerate(fuzzed(messages, 6000, 7)):
            caller.send(0, messages[0] if number % 20 == 0 else frames)
        with servers.connect() as tables:
            train(tables, 1)
        wait_until(lambda: member.counts.strangers > 1000)
        assert member.error is None
        caller.close()


def test_another_version_is_told_from_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_link, "VERSION", 2)
    with (
        Serve(TABLE) as servers,
        pytest.raises(RunError, match="speaks version 2 of the protocol, this server version 1"),
    ):
        servers.connect()


def test_a_request_that_does_not_hold_together_changes_nothing() -> None:
    with Serve(TABLE) as servers:
        tables = servers.connect("w")
        train(tables, 1)
        session = tables._link._session
        caller = Caller([servers.members[0].address])
        keys, clocks, rows = np.array([3], np.int64), np.ones(1, np.int32), np.ones((1, 4), np.float32)
        for arrays, said in (
            ([keys, clocks, rows[:, :3]], "brings 12 bytes"),
            ([keys, clocks], "in 2 frames"),
            ([keys + 900, clocks, rows], "asks for row 903"),
        ):
            caller.send(0, encode(Ask(session, 2, [(1, 0, 0)], [8], True), arrays))
            got = caller.receive(5.0)
            assert got
            refused = from_server(got[1][0])
            assert isinstance(refused, Refused)
            assert said in refused.reason
        caller.close()
        train(tables, 2)
        tables.close()
    np.testing.assert_allclose(servers.table("a")[:4, 0], [0, -0.1, -0.1, 0], rtol=1e-6)


def test_a_worker_that_vanishes_costs_what_it_had_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a barrier the others go on as soon as its lease has run out."""
    with Serve(TABLE, Kind(staleness=100), lease_seconds=1.0) as servers:
        gone, stays = servers.connect("gone"), servers.connect("stays")
        gone.warm()
        monkeypatch.setattr("htrain.client.tables._UNSENT_SECONDS", 0.0)
        train(gone, 1, 2, 3)
        train(stays, 1)
        wait_until(lambda: any(m.unsent == 3 for m in servers.members[0]._membership.members.values()))
        gone._link._ended.set()  # as a process that was killed: it says nothing any more
        wait_until(lambda: "gone" in told(servers) and "not heard" in told(servers))
        assert "updates of 3 rows that it had not sent are lost (at most 101 of each)" in told(servers)
        train(stays, 1)
        with pytest.raises(
            PeerLost, match=r"this worker cannot go on: it is no member here: its lease has run out.*tables.rejoin"
        ):
            gone.flush()
        assert gone.rejoin() == 3
        train(gone, 4)
        gone.close()
        stays.close()
    np.testing.assert_allclose(servers.table("a")[:5, 0], [0, -0.2, 0, 0, -0.1], rtol=1e-6)


def test_a_server_that_stood_still_for_longer_than_a_lease_has_lost_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while its loops are compiled, or where it is stopped for a while: what its workers have said meanwhile waits to be read."""
    with Serve(TABLE, lease_seconds=1.5) as servers, servers.connect("one") as one, servers.connect("two") as two:
        train(two, 1)
        holder = servers.members[0]._holders[0]
        check = holder.check

        def slow(request: Request) -> None:
            monkeypatch.setattr(holder, "check", check)
            time.sleep(2.0)
            check(request)

        monkeypatch.setattr(holder, "check", slow)
        train(one, 1)
        for tables in (one, two):
            train(tables, 2)
            tables.flush()
        assert servers.members[0].counts.vanished == 0
        assert "no more" not in told(servers)


def test_a_worker_that_was_stopped_for_longer_than_its_deadline_looks_for_answers_before_it_gives_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Serve(TABLE) as servers, servers.connect("one", deadline_seconds=1.2) as tables:
        receive = tables._link._caller.receive

        def stopped(seconds: float) -> object:
            monkeypatch.setattr(tables._link._caller, "receive", receive)
            time.sleep(1.5)

        monkeypatch.setattr(tables._link._caller, "receive", stopped)
        train(tables, 1)


def test_a_round_does_not_wait_for_a_worker_that_has_vanished() -> None:
    with Serve(TABLE, Kind(staleness=0), lease_seconds=1.0) as servers:
        gone, stays, looks = (servers.connect(name, gradient_scale=1.0) for name in ("gone", "stays", "looks"))
        looks.look("a", torch.tensor([1]))  # who only looks is waited for by nobody
        train(gone, 2)
        gone._link._ended.set()
        for _ in range(3):
            train(stays, 1)
        stays.close()
        looks.close()
        gone._link._caller.close()
    np.testing.assert_allclose(servers.table("a")[1, 0], -0.3, rtol=1e-6)


def test_others_that_never_come_are_named_after_a_while() -> None:
    with Serve(TABLE, Kind(staleness=0)) as servers:
        idle, waits = servers.connect("idle"), servers.connect("waits", round_seconds=1.0)
        train(idle, 1)
        train(waits, 1)
        with pytest.raises(PeerLost, match=r"has waited 1 s for idle: with a staleness of 0 all workers step together"):
            train(waits, 1)
        waits._link.drop()
        idle.close()


def test_a_process_that_joins_under_a_name_takes_its_place() -> None:
    with Serve(TABLE) as servers:
        first, second = servers.connect("w"), servers.connect("w")
        train(second, 1)
        with pytest.raises(PeerLost, match="another process has joined under its name"):
            train(first, 1)
        second.close()
        first._link.drop()


def test_servers_that_were_started_again_are_gone_on_with_by_a_rejoin() -> None:
    with Serve(TABLE) as servers:
        tables = servers.connect("w")
        tables.warm()
        train(tables, 1)
        tables.flush()
        train(tables, 2, 3)
        ports = servers.ports
        servers.end()
        with pytest.raises(PeerLost, match=r"127.0.0.1:\d+ did not answer within 1 s: is 'htrain serve' running there"):
            connect(tables._where.address, token="word", deadline_seconds=1.0)
        servers.begin(ports)
        with pytest.raises(PeerLost, match=r"the server was started anew; tables.rejoin\(\) begins anew"):
            train(tables, 4)
        for again in (lambda: train(tables, 4), tables.flush, lambda: tables.announce({"a": torch.tensor([1])})):
            with pytest.raises(PeerLost, match=r"has not been answered: tables.rejoin\(\) begins anew with its rows"):
                again()
        assert tables.rejoin() == 2
        train(tables, 4)
        tables.close()
    np.testing.assert_allclose(servers.table("a")[:5, 0], [0, -0.1, 0, 0, -0.1], rtol=1e-6)


def publish(servers: Serve, folder: Path, token: str = TOKEN) -> None:
    """As `htrain serve` does in its run folder."""
    first, *others = (f"tcp://127.0.0.1:{port}" for port in servers.ports)
    (folder / FILE).write_bytes(msgspec.json.encode(Address(first, token, tuple(others))))


def test_servers_that_were_started_again_elsewhere_are_found_by_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its whole path: the worker may have changed its own folder. One that has joined by an address asks there."""
    with Serve(TABLE) as servers:
        publish(servers, tmp_path)
        monkeypatch.chdir(tmp_path.parent)
        tables = connect(tmp_path.name, deadline_seconds=1.0)
        by_address = servers.connect("by address", deadline_seconds=1.0)
        monkeypatch.chdir("/")
        train(tables, 1)
        tables.flush()
        before = servers.ports
        servers.end()
        with pytest.raises(PeerLost, match=f"{before[0]}.* did not answer within 1 s"):
            tables.rejoin()
        with pytest.raises(PeerLost, match=r"has not joined anew: tables.rejoin\(\) begins anew with its rows"):
            train(tables, 2)
        servers.begin()
        assert servers.ports[0] != before[0]
        publish(servers, tmp_path)
        assert tables.rejoin() == 0
        train(tables, 2)
        tables.close()
        with pytest.raises(PeerLost, match=f"{before[0]}.* did not answer within 1 s"):
            by_address.rejoin()
        (tmp_path / FILE).unlink()
        with pytest.raises(UsageError, match=r"holds no serving\.json: is 'htrain serve' running there\?"):
            tables.rejoin()
    np.testing.assert_allclose(servers.table("a")[:4, 0], [0, -0.1, -0.1, 0], rtol=1e-6)


def test_a_rejoin_to_another_plan_is_refused_however_often_it_is_asked_for(tmp_path: Path) -> None:
    with Serve(TABLE) as servers, Serve({"other": TABLE["a"]}) as others:
        publish(servers, tmp_path)
        tables = connect(tmp_path)
        publish(others, tmp_path)
        for _ in range(2):
            with pytest.raises(RunError, match=r"serves another plan now \(model, digest digest\): connect anew"):
                tables.rejoin()


def test_an_answer_that_is_lost_is_asked_for_again_and_nothing_is_applied_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every other answer of the servers goes nowhere."""
    monkeypatch.setattr(client_link, "_SAY_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(client_link, "_TURN_SECONDS", 0.02)
    with Serve(TABLE, Kind(lr=1.0)) as servers:
        sent: list[int] = []
        for members in servers.members:
            listener = members._listener
            deliver = listener.send

            def lossy(receiver: bytes, frames: list, deliver: Callable = deliver) -> None:  # type: ignore[type-arg]
                sent.append(1)
                if len(sent) % 2:
                    deliver(receiver, frames)

            monkeypatch.setattr(listener, "send", lossy)
        tables = servers.connect("w")
        for _ in range(10):
            train(tables, 1, 30)
            tables.flush()
        tables.close()
    np.testing.assert_allclose(servers.table("a")[[1, 30], 0], [-10, -10])


def test_a_place_that_is_none_is_said(tmp_path: object) -> None:
    places = {"nowhere": "neither a folder", "host:99999": "neither a folder", "127.0.0.1:1": "wants a token"}
    for where, said in {**places, str(tmp_path): "holds no serving.json"}.items():
        with pytest.raises(UsageError, match=said):
            connect(where)
    for wrong, said in (
        ({"capacity": 0}, "capacity: 0 is no number of rows"),
        ({"gradient_scale": "sum"}, "gradient_scale: is 'sum', want a number or 'mean'"),
        ({"gradient_scale": float("nan")}, "gradient_scale: is nan, want a number or 'mean'"),
        ({"deadline_seconds": 0}, "want seconds above 0"),
        ({"round_seconds": float("nan")}, "want seconds above 0"),
        ({"worker": "w" * 201}, "has 201 characters, want at most 200"),
    ):
        with pytest.raises(UsageError, match=said):
            connect("127.0.0.1:1", token="x", **wrong)  # type: ignore[arg-type]
    with pytest.raises(PeerLost, match="did not answer within 1 s"):
        connect("127.0.0.1:1", token="x", deadline_seconds=1.0)
