"""Stands in for a worker that another program has started: ``antdt run`` starts this process, which hands what a worker is told over to
the real one, and ends with it. The real one listens at the socket ``LOCAL_RANK`` in the folder that a variable of the host names."""

import json
import os
import socket
import sys
import threading
from typing import Dict, Optional

#: Folder of the sockets on this host: the command line is the same on all hosts.
FOLDER = "SEATS_OF_ANTDT"

#: What a worker is told by its variables.
_TOLD = ("ANTDT_", "RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_")

#: The real worker is no child of the program, and does not look for it as its parent.
_KEPT = "ANTDT_LAUNCHER_PID"


class Seat:
    """Where the real worker waits for its stand-in. The process ends when its stand-in does before it has finished: the worker has no
    part in the job any more."""

    def __init__(self, folder: str, local_rank: int) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(os.path.join(folder, str(local_rank)))
        self._listener.listen(1)
        self._taken = threading.Event()
        self._stand_in: Optional[socket.socket] = None
        self.code: Optional[int] = None
        threading.Thread(target=self._serve, daemon=True).start()

    def wait(self, limit: float) -> bool:
        """Waits until the variables of this process say which worker it is; returns whether they do."""
        return self._taken.wait(limit)

    def finish(self, code: int) -> None:
        """The worker has done its work, and would end with this exit code."""
        self.code = code
        if self._stand_in is not None:
            self._stand_in.sendall(f"{code}\n".encode())

    def _serve(self) -> None:
        self._stand_in = self._listener.accept()[0]
        self._listener.close()
        reader = self._stand_in.makefile()
        line = reader.readline()
        if line:
            told: Dict[str, str] = json.loads(line)
            os.environ.update(told)
            self._taken.set()
            reader.readline()
        if self.code is None:
            print("antdt: this worker is no part of its job any more", file=sys.stderr, flush=True)
            os._exit(1)


def main() -> int:
    told = {name: value for name, value in os.environ.items() if name.startswith(_TOLD) and name != _KEPT}
    with socket.socket(socket.AF_UNIX) as seat:
        seat.connect(os.path.join(os.environ[FOLDER], os.environ["LOCAL_RANK"]))
        seat.sendall(json.dumps(told).encode() + b"\n")
        code = seat.makefile().readline()
    # Without an answer the worker has died.
    return int(code) if code else 1


if __name__ == "__main__":
    sys.exit(main())
