"""A real server killed at random moments: what it had said to be done is there, nothing is half, and doctor agrees."""

from __future__ import annotations

import random
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from said import Said, add, ask, busy, examine, missing, review
from serving import COMMAND, environment, start

from api.cli import run

KILLS = 50
MOST_S = 6.0


def check_backup(archive: Path, home: Path) -> int:
    """Restores a backup that was finished; one that was not is not there."""
    if not archive.exists():
        return 0
    shutil.rmtree(home, ignore_errors=True)
    for command in (["restore", str(archive)], ["doctor"]):
        assert run(["--home", str(home), *command]) == 0
    archive.unlink()
    return 1


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_server_killed_fifty_times_loses_nothing_that_it_said_was_done(
    sample_home: Path, tmp_path: Path, record_property: Any
) -> None:
    rng = random.Random(5)
    home, rounds = Path(shutil.copytree(sample_home, tmp_path / "home")), [Said()]
    archive, backups = tmp_path / "backup.zip", 0
    for kill in range(KILLS):
        server = start(home)
        assert list(missing(server.client, rounds[-1])) == []
        said, wrong = Said(), list[BaseException]()
        rounds.append(said)
        workers = [
            threading.Thread(target=busy, args=(server, work, said, wrong)) for work in (add, ask, examine, review)
        ]
        for worker in workers:
            worker.start()
        backup = [*COMMAND, "backup", str(archive)]
        saving = subprocess.Popen(backup, env=environment(home), stdout=subprocess.DEVNULL) if kill % 3 == 0 else None
        time.sleep(rng.random() * MOST_S)
        server.popen.kill()
        server.popen.wait()
        server.client.close()
        if saving is not None:
            if kill % 2:
                saving.kill()
            saving.wait()
        for worker in workers:
            worker.join()
        assert wrong == []
        print(f"kill {kill}: {said}")
        backups += check_backup(archive, tmp_path / "restored")
        assert run(["--home", str(home), "doctor"]) == 0
    server = start(home)
    assert [lost for said in rounds for lost in missing(server.client, said)] == []
    server.client.close()
    server.popen.kill()
    server.popen.wait()
    assert run(["--home", str(home), "doctor", "--repair"]) == 0
    assert not list(home.glob("uploads/.partial-*")) and not list(home.glob(".backup-*"))
    print(f"{backups} backups were whole")
    record_property("tried", KILLS)
    for kind in ("books", "answers", "exams", "reviews"):
        assert sum(len(getattr(said, kind)) for said in rounds) >= 10, kind
    assert backups >= 3
