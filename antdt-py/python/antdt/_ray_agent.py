"""The part of a host of a job under Ray: an actor that has ``antdt run`` as a child process, and ends it when nobody asks for it."""

import glob
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Deque, List, Mapping, Optional, Sequence, Tuple

from . import __version__

#: Time without a question after which a host ends its part: its driver is gone, or out of reach.
LEASE = 60.0

#: How often the agent looks whether its raylet lives.
LOOK = 0.1

#: How long an answer may be held back while there is nothing new to tell.
HOLD = 0.5

#: Lines of output that are kept for an error.
TAIL = 20

#: Runs the program in its own place once the kernel has been told to kill it with the thread that started it, and with that the actor.
#: A hook of ``subprocess`` would run between fork and exec, where the many threads of an actor may have left locks taken.
_BOUND = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 9)\n"
    "os.getppid() == int(sys.argv[1]) or sys.exit(1)\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)


@dataclass(frozen=True)
class HostFacts:
    """A host before it has a part in a job."""

    node_id: str
    address: str
    #: A port that was free a moment ago, at which the first host opens the job's gate.
    port: int
    #: Port of the connection whose end tells that the actor has ended.
    tether: int
    #: What is wrong with the program there.
    trouble: Optional[str]


@dataclass(frozen=True)
class HostAnswer:
    """What a host says of itself."""

    #: Exit code of ``antdt run``; ``None`` while it runs.
    code: Optional[int]
    #: Whether the node's raylet lives.
    has_raylet: bool
    tail: Tuple[str, ...]


def program() -> Optional[str]:
    """The ``antdt`` program of this node: the one that a variable names, that of the package, or the one on the path."""
    named = os.environ.get("ANTDT")
    packaged = os.path.join(os.path.dirname(__file__), "bin", "antdt")
    candidates = [named, packaged if os.access(packaged, os.X_OK) else None]
    return next((path for path in candidates if path), None) or shutil.which("antdt")


def trouble_of(path: Optional[str]) -> Optional[str]:
    """What is wrong with a program, if anything is."""
    remedy = "install the same antdt wheel on every node"
    if path is None:
        return f"there is no antdt program; {remedy}"
    try:
        said = subprocess.run([path, "--version"], stdout=subprocess.PIPE, text=True, timeout=20).stdout.split()
    except (OSError, subprocess.SubprocessError) as error:
        return f"{path} cannot be run ({error}); {remedy}"
    if said[-1:] != [__version__]:
        return f"{path} has version {' '.join(said[-1:]) or '(none)'} and the package {__version__}; {remedy}"
    return None


class HostAgent:
    """Methods of the actor. Several of them run at a time."""

    def __init__(self) -> None:
        self._raylet = os.getppid()
        #: When it was polled last; there is no lease before the first time.
        self._asked: Optional[float] = None
        self._child: Optional["subprocess.Popen[str]"] = None
        self._tail: Deque[str] = deque(maxlen=TAIL)
        self._is_ending = threading.Event()
        #: There is something to tell: the child or the raylet has ended.
        self._is_over = threading.Event()
        self._listener = socket.socket()
        self._held: List[socket.socket] = []

    def facts(self) -> HostFacts:
        """Called once, before all others."""
        import ray

        node_id, address = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
        self._listener.bind((address, 0))
        self._listener.listen(8)
        threading.Thread(target=self._accept, daemon=True).start()
        with socket.socket() as free:
            free.bind((address, 0))
            port = free.getsockname()[1]
        return HostFacts(node_id, address, port, self._listener.getsockname()[1], trouble_of(program()))

    def begin(self, secret: str, flags: Sequence[str], command: Sequence[str], variables: Mapping[str, str]) -> None:
        """Starts ``antdt run`` with these flags. The ``secret`` of the job goes into a pipe that it alone reads, as a file of mode 0600
        would: none is left behind when this process is killed."""
        path = program()
        assert path is not None
        words, environment = list(command), dict(os.environ)
        if words[0].endswith(".py"):
            words = [sys.executable, "-u", *words]
        # Ray sets it for the threads of this actor, which computes nothing.
        environment.pop("OMP_NUM_THREADS", None)
        environment.update(variables)
        reader, writer = os.pipe()
        os.fchmod(reader, 0o600)
        os.write(writer, secret.encode())
        os.close(writer)
        own = ["run", *flags, "--rdzv-secret-file", f"/proc/self/fd/{reader}", "--", *words]
        started = threading.Event()
        failed: List[OSError] = []

        def hold() -> None:
            """The child ends with this thread, which therefore waits for it."""
            shim = [sys.executable, "-I", "-S", "-c", _BOUND, str(os.getpid()), path]
            try:
                self._child = child = subprocess.Popen(
                    [*shim, *own], env=environment, pass_fds=[reader], stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                )  # fmt: skip
            except OSError as error:
                failed.append(error)
                return
            finally:
                os.close(reader)
                started.set()
            assert child.stdout is not None
            for line in child.stdout:
                self._tail.append(line.rstrip("\n"))
                # Not by ``print``, in whose place Ray Train has its own.
                sys.stdout.write(line)
                sys.stdout.flush()
            child.wait()
            self._is_over.set()

        threading.Thread(target=hold, daemon=True).start()
        started.wait()
        if failed:
            raise failed[0]
        threading.Thread(target=self._watch, daemon=True).start()

    def make_folder(self) -> str:
        """A folder of this node for the report of a job that names none."""
        return tempfile.mkdtemp(prefix="antdt-ray-")

    def poll(self) -> HostAnswer:
        """Answers at once when something has ended, else after a moment."""
        self._asked = time.monotonic()
        self._is_over.wait(HOLD)
        code = None if self._child is None else self._child.poll()
        return HostAnswer(code, os.getppid() == self._raylet, tuple(self._tail.copy()))

    def end(self) -> None:
        """Asks the program to end; its workers have the grace of the job for it."""
        self._is_ending.set()
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the program at once, if it runs."""
        if self._child is not None and self._child.poll() is None:
            self._child.kill()

    def ask(self, words: Sequence[str], limit: float) -> Tuple[int, str]:
        """Runs another command of the program; returns its exit code and what it said."""
        path = program()
        assert path is not None
        try:
            ended = subprocess.run(
                [path, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit
            )
        except subprocess.TimeoutExpired:
            return 1, f"antdt {' '.join(words)} took longer than {limit:g} s"
        return ended.returncode, ended.stdout.strip()

    def has_checkpoint(self, folder: str) -> bool:
        """Whether a folder of checkpoints, or that of a report, has something to go on from."""
        folders = [folder, os.path.join(folder, "checkpoints"), os.path.join(folder, "run", "checkpoints")]
        return any(glob.glob(os.path.join(glob.escape(path), "*", "manifest.json")) for path in folders)

    def read(self, path: str) -> Optional[str]:
        """A file of this node, if it is there."""
        try:
            with open(path) as file:
                return file.read()
        except OSError:
            return None

    def _accept(self) -> None:
        while True:
            try:
                self._held.append(self._listener.accept()[0])
            except OSError:
                return

    def _watch(self) -> None:
        """Ends the child with the raylet or the lease: the actor itself outlives its raylet for many seconds. Without its raylet the node
        is none of the cluster, and is left at once: while a host leaves in order, the job may begin a worker's next life on it."""
        child = self._child
        while child is not None and child.poll() is None:
            if os.getppid() != self._raylet:
                self._is_over.set()
                child.kill()
            elif self._asked is not None and time.monotonic() - self._asked >= LEASE and not self._is_ending.is_set():
                self.end()
            time.sleep(LOOK)
