"""Many clients at once, of a home, or of two servers and a worker over a database; one server is killed in the middle.

    python -m tools.bench_load [--database URL] [--clients N] [--seconds S]

Each client asks, searches, streams and takes exams without a pause, at each server in turn. What fails or is refused is
tried again at the next; what was acknowledged is looked for at the end. Without a database nothing is killed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil

from evals.questions import load_bank
from tools.bench_libraries import percentile
from tools.bench_serving import TIMEOUT_S, free_port, wait_ready

MIX = {"ask": 40, "search": 30, "stream": 15, "exam": 15}
"""How many of a hundred things that a client does."""
TRY_S = 120.0
GIVE_UP_S = 180.0
READY_S = 600.0
LONGEST_PAUSE_S = 2.0
"""A client waits as long as `Retry-After` says, at most so long."""


class Load:
    """Clients of some servers, what they saw, and what was acknowledged to them."""

    def __init__(self, addresses: Sequence[str], clients: int, seconds: float) -> None:
        self._addresses = addresses
        self._clients = clients
        self._seconds = seconds
        self._questions = [question.question for question in load_bank(split="tune")]
        self.took: dict[str, list[float]] = defaultdict(list)
        self.seen: Counter[str] = Counter()
        self.answers: dict[str, set[str]] = defaultdict(set)
        self.exams: dict[str, str] = {}
        self._gone: set[str] = set()

    async def run(self) -> None:
        """All clients, until the time is over and each has what it asked for; then look for what they got."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=self._clients)
        async with httpx.AsyncClient(timeout=TRY_S, limits=limits, trust_env=False) as http:
            self._http = http
            self._until = time.perf_counter() + self._seconds
            await asyncio.gather(*(self._client(number) for number in range(self._clients)))
            self.ended = time.perf_counter()
            for conversation, answers in self.answers.items():
                found = await self._call(f"/v1/conversations/{conversation}", None, random.Random(0))
                self.seen["lost"] += len(answers - {answer["id"] for answer in found["answers"]})
            for exam, learner in self.exams.items():
                found = await self._call(f"/v1/exams/{exam}?learner={learner}", None, random.Random(0))
                self.seen["lost"] += found["handed_in_at"] is None

    async def _client(self, number: int) -> None:
        chance, learner = random.Random(number), f"load-{number}"
        conversation = (await self._call("/v1/conversations", {}, chance))["id"]
        while time.perf_counter() < self._until:
            [kind] = chance.choices(list(MIX), list(MIX.values()))
            text = chance.choice(self._questions)
            if kind == "search":
                await self._timed(kind, "/v1/search", {"query": text}, chance)
            elif kind == "exam":
                exam = await self._timed("exam made", "/v1/exams", {"count": 3, "learner": learner}, chance)
                answers = {question["id"]: 0 for question in exam["questions"] if question.get("options")}
                handed_in = {"answers": answers, "learner": learner}
                await self._timed("exam marked", f"/v1/exams/{exam['id']}/answers", handed_in, chance)
                self.exams[exam["id"]] = learner
            else:
                body = {"question": text, "conversation_id": conversation, "stream": kind == "stream"}
                answer = await self._timed(kind, "/v1/ask", body, chance)
                self.answers[conversation].add(answer["id"])

    async def _timed(self, kind: str, path: str, body: dict[str, Any], chance: random.Random) -> Any:
        started = time.perf_counter()
        reply = await self._call(path, body, chance)
        self.took[kind].append(time.perf_counter() - started)
        return reply

    async def _call(self, path: str, body: dict[str, Any] | None, chance: random.Random) -> Any:
        """The reply of whichever server gives one. Raises TimeoutError when none does for long."""
        place, started = chance.randrange(len(self._addresses)), time.perf_counter()
        while time.perf_counter() - started < GIVE_UP_S:
            there = [each for each in self._addresses if each not in self._gone] or self._addresses
            address = there[place % len(there)]
            place += 1
            try:
                reply = await self._http.request("GET" if body is None else "POST", f"{address}{path}", json=body)
                if reply.is_success:
                    return _event_done(reply.text) if body and body.get("stream") else reply.json()
            except (httpx.TransportError, LookupError) as error:
                self.seen[f"tried again: {type(error).__name__}"] += 1
                if isinstance(error, httpx.ConnectError):
                    self._gone.add(address)
                continue
            if reply.status_code == 409 and path.endswith("/answers"):
                return None  # the try before had been kept
            self.seen[f"tried again: {reply.status_code}"] += 1
            pause = float(reply.headers.get("Retry-After", 1))
            await asyncio.sleep(min(pause, LONGEST_PAUSE_S) * chance.uniform(0.5, 1))
        raise TimeoutError(f"{path} was answered by no server in {GIVE_UP_S} s")


def _event_done(text: str) -> Any:
    """The answer at the end of a stream. Raises LookupError where the stream broke off or failed."""
    for event in reversed(text.replace("\r", "").split("\n\n")):
        lines = dict(line.partition(": ")[::2] for line in event.splitlines())
        if lines.get("event") == "done":
            return json.loads(lines["data"])
    raise LookupError


def bench_load(database: str | None = None, clients: int = 200, seconds: float = 60.0) -> dict[str, Any]:
    """Answers a second, seconds p50 and p99 by kind, what was tried again, and what was acknowledged and lost."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        shared = {"COALESCE_DATABASE_URL": database, "COALESCE_UPLOADS_URL": f"file://{folder}/uploads"}
        ports = [free_port() for _ in range(2 if database else 1)]
        alone = ["--no-worker"] if database else []
        servers = [
            _started(
                ["serve", "--port", str(port), *alone],
                Path(folder) / f"home-{port}",
                shared if database else {},
                running,
            )
            for port in ports
        ]
        if database:
            _started(["worker"], Path(folder) / "home-worker", shared, running)
        addresses = [f"http://127.0.0.1:{port}" for port in ports]
        for address in addresses:
            wait_ready(f"{address}/readyz", time.perf_counter(), READY_S)
        load = Load(addresses, clients, seconds)
        began = time.perf_counter()
        at_begin = psutil.getloadavg()[0]
        before_s = sum(map(_processor_s, servers))
        killed_s = 0.0

        async def both() -> None:
            nonlocal killed_s
            run = asyncio.create_task(load.run())
            if database:
                await asyncio.sleep(seconds / 2)
                killed_s = _processor_s(servers[0])
                servers[0].kill()
                load.seen["servers killed"] += 1
            await run

        asyncio.run(both())
        alive = [server for server in servers if server.poll() is None]
        memory = [int(psutil.Process(server.pid).memory_info().rss) // 2**20 for server in alive]
        computed_s = killed_s + sum(map(_processor_s, alive)) - before_s
        took_s = load.ended - began
    everything = [each for times in load.took.values() for each in times]
    return {
        "bench": "load",
        "where": "database" if database else "home",
        "clients": clients,
        "seconds": seconds,
        "load_of_the_machine": [round(at_begin, 1), round(psutil.getloadavg()[0], 1)],
        "all_s": round(took_s, 1),
        "answers": len(everything),
        "answers_per_s": round(len(everything) / took_s, 1),
        "by_kind": {kind: _figures(times) for kind, times in sorted(load.took.items())} | {"all": _figures(everything)},
        "acknowledged": sum(map(len, load.answers.values())) + len(load.exams),
        "lost": load.seen.pop("lost", 0),
        "seen": dict(load.seen),
        "memory_mb": memory,
        "processor_ms_each": round(1000 * computed_s / len(everything), 1),
    }


def _started(
    arguments: Sequence[str], home: Path, shared: dict[str, str | None], running: ExitStack
) -> subprocess.Popen[bytes]:
    set_here = {name: value for name, value in shared.items() if value}
    process = subprocess.Popen(
        [sys.executable, "-m", "api.cli", *arguments],
        env={**os.environ, "COALESCE_HOME": str(home), **set_here},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    running.callback(process.wait, TIMEOUT_S)
    running.callback(process.terminate)
    return process


def _processor_s(process: subprocess.Popen[bytes]) -> float:
    """Seconds that a server has computed, which other work on the machine hardly changes."""
    times = psutil.Process(process.pid).cpu_times()
    return float(times.user + times.system)


def _figures(times: Sequence[float]) -> dict[str, float]:
    ordered = list(times)
    return {
        "n": len(ordered),
        "p50_s": round(percentile(ordered, 0.5), 2),
        "p99_s": round(percentile(ordered, 0.99), 2),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the result as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench_load", description="Measure many clients at once.")
    parser.add_argument("--database", help="an empty PostgreSQL database that two servers share")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    result = bench_load(**vars(parser.parse_args(arguments)))
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
