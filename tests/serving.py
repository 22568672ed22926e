"""A real `coalesce serve` process for tests: started on a free port, waited for, stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from api_fakes import PATIENCE_S, wait_until

COMMAND = [sys.executable, "-c", "from api.cli import main; main()"]
COALESCE_SERVE = (*COMMAND, "serve")


@dataclass
class Process:
    """A running server, and the processor's seconds until it was healthy."""

    popen: subprocess.Popen[str]
    client: httpx.Client
    home: Path
    address: str
    healthy_s: float

    def processor_s(self) -> float:
        """Seconds that the server has computed, which other work on the machine hardly changes."""
        return processor_s(self.popen.pid)


def processor_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "COALESCE_HOME": str(home), "HF_HUB_OFFLINE": "1"}


def coalesce(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], env=environment(home), capture_output=True, text=True, check=False)


def start(home: Path, *options: str, command: Sequence[str] = COALESCE_SERVE) -> Process:
    """Starts the server on a free port, by `coalesce` or by `make`, and waits until it is ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    at = f"PORT={port}" if command[0] == "make" else f"--port={port}"
    with (home.parent / "serve.log").open("a") as log:
        popen = subprocess.Popen([*command, at, *options], env=environment(home), stdout=log, stderr=log, text=True)
    address = f"http://127.0.0.1:{port}"
    client = httpx.Client(base_url=address, timeout=PATIENCE_S)

    def answers(path: str) -> bool:
        if popen.poll() is not None:
            raise AssertionError(f"the server ended: {(home.parent / 'serve.log').read_text()}")
        try:
            return client.get(path).status_code == 200
        except httpx.ConnectError:
            return False

    try:
        wait_until(lambda: answers("/healthz"), "healthz")
        healthy_s = processor_s(popen.pid)
        wait_until(lambda: answers("/readyz"), "readyz", 5 * PATIENCE_S)  # it may index the book first
    except BaseException:
        client.close()
        popen.kill()
        popen.wait()
        raise
    return Process(popen, client, home, address, healthy_s)


def stop(process: Process, number: signal.Signals = signal.SIGINT) -> int:
    process.client.close()
    process.popen.send_signal(number)
    return process.popen.wait(PATIENCE_S)
