"""The driver's side of a shared job: processes join, run its slots, and are noticed to leave.

``members.json`` in the job's storage says who is in, for ``jobs describe`` and for the driver that
comes next; ``standalone.json``, for its owner alone, how to join. ``Membership`` is a pure table: a
process is in, leaving, or out, and ``version`` changes whenever slots come or go, so tasks that
were placed by an older one are placed again. A new driver waits a moment for the processes of the
one before it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from headrace.clock import Clock
from headrace.config import Settings
from headrace.coordinator.leader_lease import MEMBERS_FILE, MemberInfo
from headrace.errors import HeadraceError, InternalError, InvalidInputError, UnavailableError
from headrace.files import Files, write_private
from headrace.runtime.connections import answer_each, stop_listening
from headrace.runtime.orders import SlotOrder, SlotReport
from headrace.standalone.slots import LocalSlots, settle
from headrace.standalone.wire import (
    Alive,
    Connection,
    Do,
    Done,
    Hello,
    Leave,
    Over,
    Refused,
    Welcome,
    make_certificate,
)

ADDRESS = "standalone.json"
_LOCK = "process.lock"
_MOST = 1000


class DriverAddress(msgspec.Struct, frozen=True):
    """Where the driver of a job can be joined, and what proves that one may.

    ``identity`` is key and certificate of its connections; empty on a host without openssl, where
    only processes of that host can join.
    """

    host: str
    port: int
    token: str
    process: int
    identity: str = ""


def read_address(storage: Path) -> DriverAddress | None:
    """Return where a job can be joined; ``None``: nowhere."""
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(Files(sync=False).read(storage / ADDRESS), type=DriverAddress)
    return None


class StateDirLock:
    """A state directory that no other process of the job uses as long as this one lives.

    The first process of a home has the directory of the settings, the others one each below it,
    ``_process/2`` and so on. A process that is started again takes the first that is free, and so
    finds the stores of one that has gone.

    Args:
        settings: of the job.
        job: its name.
    """

    def __init__(self, settings: Settings, job: str) -> None:
        base = settings.state_dir
        for number in range(1, _MOST):
            path = base if number == 1 else base / "_process" / str(number)
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(path / f"{job}.{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                continue
            self._descriptor = descriptor
            state = replace(settings.state, dir=path)
            self.settings = replace(settings, state=state)
            return
        raise UnavailableError(f"{_MOST} processes of job {job!r} use {base}; expected fewer")

    def release(self) -> None:
        """Let another process have it; doing so twice is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


SETTLE_S = 1.0
"""So long does a new driver wait for those who were in with the one before."""


@dataclass(frozen=True)
class Member:
    """A process that runs slots: its number, the identity of its state directory, who it is."""

    number: int
    host: str
    machine: str
    process: int
    slots: int
    is_leaving: bool = False


@dataclass
class Membership:
    """The processes of a job.

    Args:
        silence_s: after so long without a heartbeat a process is lost.
    """

    silence_s: float
    members: dict[int, Member] = field(default_factory=dict)
    version: int = 0
    _heard: dict[int, float] = field(default_factory=dict)
    _awaited: dict[str, float] = field(default_factory=dict)
    _waited: dict[int, float] = field(default_factory=dict)
    _next: int = 0

    def join(self, host: str, machine: str, process: int, slots: int, now: float) -> Member:
        """Take a process in; another one with its state directory is out by that."""
        for other in [one for one in self.members.values() if one.host == host]:
            self._remove(other.number)
        member = Member(self._next, host, machine, process, slots)
        self._next += 1
        self.members[member.number] = member
        self._heard[member.number] = now
        self._awaited.pop(host, None)
        self.version += 1
        return member

    def heard(self, number: int, now: float) -> None:
        """Note a heartbeat."""
        if number in self.members:
            self._heard[number] = now

    def leave(self, number: int) -> None:
        """Note that a process would like to go: it is given nothing more to do."""
        member = self.members.get(number)
        if member is not None and not member.is_leaving:
            self.members[number] = replace(member, is_leaving=True)
            self.version += 1

    def lose(self, number: int, now: float) -> None:
        """Note that a process has gone."""
        member = self.members.get(number)
        if member is None:
            return
        silent_s = now - self._heard[number]
        if member.is_leaving:
            self._waited[number] = float("inf")
        elif silent_s >= self.silence_s:
            self._waited[number] = silent_s
        self._remove(number)

    def waited_s(self, numbers: Iterable[int]) -> float:
        """Return how long those of these that have gone, or would like to, have been waited for.

        For one that has asked to leave nobody need wait.
        """
        able = {member.number for member in self.able()}
        left = {number for number, one in self.members.items() if one.is_leaving}
        found = [
            float("inf") if number in left else self._waited.get(number, 0.0)
            for number in numbers
            if number not in able
        ]
        return min(found, default=0.0)

    def _remove(self, number: int) -> None:
        del self.members[number], self._heard[number]
        self.version += 1

    def expect(self, hosts: Iterable[str], now: float) -> None:
        """Wait for hosts that were in with the driver before, and may just be coming over."""
        here = {member.host for member in self.members.values()}
        self._awaited.update(dict.fromkeys(set(hosts) - here, now + SETTLE_S))

    def silent(self, now: float) -> list[Member]:
        """Return the processes that have sent no heartbeat for too long."""
        return [
            member
            for number, member in self.members.items()
            if now - self._heard[number] >= self.silence_s
        ]

    def awaited(self, now: float) -> set[str]:
        """Return the hosts that are still waited for."""
        return {host for host, until in self._awaited.items() if now < until}

    def able(self) -> list[Member]:
        """Return the processes that slots can be used of, in the order in which they came."""
        return [member for member in self.members.values() if not member.is_leaving]

    def unneeded(self, used: Iterable[int]) -> list[Member]:
        """Return the processes that are leaving and whose slots nobody uses any more."""
        busy = set(used)
        return [one for one in self.members.values() if one.is_leaving and one.number not in busy]

    def validate(self) -> None:
        """Check what must always hold.

        Raises:
            InternalError: it does not.
        """
        hosts = [member.host for member in self.members.values()]
        if len(set(hosts)) != len(hosts):
            raise InternalError(f"two processes with one state directory: {sorted(hosts)}")
        if set(hosts) & set(self._awaited):
            raise InternalError("a host that is here is waited for")
        if self.members.keys() != self._heard.keys():
            raise InternalError("heartbeats are kept of others than members")


BACKLOG = 64
"""So many may be about to prove that they know the token."""

BEAT_S = 0.5


class MemberLostError(Exception):
    """A process has gone in the middle of an order. Place its tasks again."""


@dataclass
class _Remote:
    """A process that has joined: its connection, and what was asked of it."""

    member: Member
    wire: Connection
    calls: dict[int, Future[SlotReport]] = field(default_factory=dict)
    count: int = 0


class ProcessGroup:
    """All processes of a job, this one first.

    Args:
        local: the slots of this process.
        count: how many these are.
        host: identity of its state directory.
        job: its name.
        membership: empty.
        clock: where time comes from.
    """

    def __init__(
        self,
        local: LocalSlots,
        count: int,
        host: str,
        job: str,
        membership: Membership,
        clock: Clock,
    ) -> None:
        self._local, self._job, self._clock = local, job, clock
        self._lock = threading.Condition()
        self._membership = membership
        self._remotes: dict[int, _Remote] = {}
        self._own = membership.join(
            host, os.uname().nodename, os.getpid(), count, clock.monotonic()
        )
        self._used: dict[str, set[int]] = {}
        self._doors: list[JoinListener] = []
        self._closed = False

    def open(
        self, storage: Path, address: str, files: Files, notify: Callable[[str], None]
    ) -> None:
        """Let processes join from now on.

        Args:
            storage: of the job.
            address: to listen on.
            files: the file system.
            notify: called with a line when a process joins, leaves or is lost.
        """
        self._doors.append(JoinListener(self, storage, address, files, self._clock, notify))

    @property
    def version(self) -> int:
        """Changes whenever slots come or go."""
        with self._lock:
            return self._membership.version

    @property
    def members(self) -> list[Member]:
        """Those that are in now."""
        with self._lock:
            return list(self._membership.members.values())

    @property
    def own(self) -> int:
        """The number of this process."""
        return self._own.number

    def waited_s(self, numbers: set[int]) -> float:
        """Return how long those of these that have gone have been waited for already."""
        with self._lock:
            return self._membership.waited_s(numbers)

    def expect(self, hosts: set[str]) -> None:
        """Wait for hosts that were in before, before tasks are placed without them."""
        with self._lock:
            self._membership.expect(hosts, self._clock.monotonic())

    def settle(self, should_stop: Callable[[], bool]) -> tuple[int, list[Member]]:
        """Return version and members, once those that are waited for are back or given up."""
        with self._lock:
            while self._membership.awaited(self._clock.monotonic()) and not should_stop():
                self._lock.wait(0.05)
            return self._membership.version, self._membership.able()

    def ask(self, number: int, job: str, slot: int, order: SlotOrder | None) -> Future[SlotReport]:
        """Ask a slot of a process; the future may hold ``MemberLostError``."""
        if number == self._own.number:
            return self._local.ask(job, slot, order)
        future: Future[SlotReport] = Future()
        with self._lock:
            remote = self._remotes.get(number)
            if remote is None:
                future.set_exception(MemberLostError(f"process {number} of the job has gone"))
                return future
            remote.count += 1
            call = remote.count
            remote.calls[call] = future
        with suppress(OSError):  # the reader finds its end
            remote.wire.send(Do(call, job, slot, order))
        return future

    def uses(self, part: str, numbers: set[int]) -> None:
        """Note which processes a part of the job has placed tasks on; others may leave."""
        with self._lock:
            self._used[part] = numbers
            self._release_unneeded()

    def _release_unneeded(self) -> None:
        used = {number for numbers in self._used.values() for number in numbers}
        for member in self._membership.unneeded(used):
            remote = self._remotes.get(member.number)
            if remote is not None:
                remote.wire.mention(Over())

    def serve(self, wire: Connection, hello: Hello) -> Member | None:
        """Take a process in and listen to it until it goes; return it, as it was at last."""
        with self._lock:
            if self._closed:  # it looks again, and finds who drives next
                wire.close()
                return None
            member = self._membership.join(
                hello.host, hello.machine, hello.process, hello.slots, self._clock.monotonic()
            )
            gone = [n for n in self._remotes if n not in self._membership.members]
            for number in gone:
                self._drop(self._remotes.pop(number))
            remote = self._remotes[member.number] = _Remote(member, wire)
            self._lock.notify_all()
        for door in self._doors:
            door.send_members(member)
        with suppress(OSError):
            wire.send(Welcome(os.getpid()))
        with suppress(HeadraceError):
            self._listen(remote)
        with self._lock:
            last = self._membership.members.get(member.number)
            self._membership.lose(member.number, self._clock.monotonic())
            self._remotes.pop(member.number, None)
            self._drop(remote)
            self._lock.notify_all()
        return last

    def _listen(self, remote: _Remote) -> None:
        number = remote.member.number
        while (message := remote.wire.receive()) is not None:
            with self._lock:
                self._membership.heard(number, self._clock.monotonic())
                if isinstance(message, Leave):
                    self._membership.leave(number)
                    self._release_unneeded()
                future = remote.calls.pop(message.call, None) if isinstance(message, Done) else None
            if future is not None and isinstance(message, Done):
                settle(future, message, number)

    def _drop(self, remote: _Remote) -> None:
        remote.wire.close()
        calls, remote.calls = list(remote.calls.values()), {}
        member = remote.member
        error = f"process {member.process} on {member.machine} has gone"
        for future in calls:
            future.set_exception(MemberLostError(error))

    def beat(self) -> None:
        """Send all processes a heartbeat, and give up those that say nothing."""
        with self._lock:
            now = self._clock.monotonic()
            self._membership.heard(self._own.number, now)
            silent = {member.number for member in self._membership.silent(now)}
            remotes = list(self._remotes.values())
        for remote in remotes:
            if remote.member.number in silent:
                remote.wire.close()  # its listener does the rest
            else:
                remote.wire.mention(Alive())

    def close(self, *, ended: bool) -> None:
        """Let all processes go, and take in no more."""
        with self._lock:
            self._closed = True
            remotes = list(self._remotes.values())
        for door in self._doors:
            door.close()
        for remote in remotes:
            remote.wire.mention(Over(ended))
            remote.wire.close()


class JoinListener:
    """Where processes join: a socket, and the word of where it is.

    Args:
        group: that they join.
        storage: of the job.
        address: to listen on.
        files: the file system.
        clock: for names, and beats.
        notify: called with a line when a process joins, leaves or is lost.
    """

    def __init__(
        self,
        group: ProcessGroup,
        storage: Path,
        address: str,
        files: Files,
        clock: Clock,
        notify: Callable[[str], None],
    ) -> None:
        self._group, self._storage, self._files, self._clock = group, storage, files, clock
        self._notify, self._over = notify, threading.Event()
        self._unproven, self._noting = threading.Semaphore(BACKLOG), threading.Lock()
        self._token = secrets.token_urlsafe(32)
        self._listener = _listening(address)
        host, port = self._listener.getsockname()[:2]
        try:
            self._identity = make_certificate(host)
        except InvalidInputError:
            self._listener.close()
            raise
        self._address = DriverAddress(host, port, self._token, os.getpid(), self._identity)
        write_private(storage / ADDRESS, msgspec.json.encode(self._address))
        self._note()
        for role in (self._accept, self._beat):
            threading.Thread(target=role, name="headrace-group", daemon=True).start()

    def _accept(self) -> None:
        answer_each(self._listener, self._meet, self._unproven, self._over, name="headrace-member")

    def _meet(self, connection: socket.socket) -> None:
        try:
            wire = Connection(connection)
            is_proven = wire.prove(self._token, is_driver=True, identity=self._identity)
        except OSError:  # it has gone already
            connection.close()
            return
        finally:
            self._unproven.release()
        if not is_proven:
            wire.close()
            return
        with suppress(HeadraceError):  # one that sends what is no message is dropped
            self._take_in(wire)
        wire.close()

    def _take_in(self, wire: Connection) -> None:
        hello = wire.receive()
        if not isinstance(hello, Hello):
            return
        if any(
            one.host == hello.host and one.number == self._group.own for one in self._group.members
        ):
            wire.mention(
                Refused("it has the driver's own state directory; give it another state.dir")
            )
            return
        last = self._group.serve(wire, hello)
        if self._over.is_set() or last is None:
            return
        self._note()
        how = "has left" if last.is_leaving else "is lost"
        self._notify(f"process {last.process} on {last.machine} {how}; its tasks go to others")

    def send_members(self, member: Member) -> None:
        """Note that a process is in."""
        self._note()
        slots = "1 slot" if member.slots == 1 else f"{member.slots} slots"
        self._notify(f"process {member.process} on {member.machine} has joined with {slots}")

    def _note(self) -> None:
        """Write down who is in: one after the other, so that what is newest stays."""
        own = self._group.own
        with self._noting, suppress(OSError):  # the next one will do it
            found = [
                MemberInfo(one.host, one.machine, one.process, one.slots, one.number == own)
                for one in self._group.members
                if not (self._over.is_set() and one.number == own)
            ]
            self._files.replace(self._storage / MEMBERS_FILE, msgspec.json.encode(found))

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            self._group.beat()

    def close(self) -> None:
        """Listen no more; who drives next need not wait for this process."""
        stop_listening(self._listener, self._over)
        self._note()
        with suppress(OSError, msgspec.DecodeError):
            path = self._storage / ADDRESS
            if msgspec.json.decode(self._files.read(path), type=DriverAddress) == self._address:
                self._files.remove(path)


def _listening(address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind((address, 0))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise InvalidInputError(
            f"standalone.host={address} cannot be listened on: {error.strerror}; give an address "
            "of this machine"
        ) from error
    return listener
