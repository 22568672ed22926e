"""`coalesce worker`: does the jobs of the servers of a database, and answers nobody."""

from __future__ import annotations

import signal
import threading

from api.console import Console
from api.running_server import database_of
from api.services import Preparation, Services, check_home
from api.settings import CoalesceSettings
from api.shared_jobs import SharedJobQueue
from indexes.errors import InvalidInput

FINISH_S = 20.0
"""How long jobs may go on after SIGTERM; those that take longer are given back."""


def run_worker(settings: CoalesceSettings, console: Console) -> None:
    """Takes jobs until Ctrl-C or SIGTERM; lets those that are nearly done end, and gives the others back.

    Raises:
        InvalidInput: the settings name no database, or no place of uploads.
        HomeNotWritable: before anything is started.
        CoalesceError: the preparation failed.
    """
    need_shared(settings, "coalesce worker")
    check_home(settings.home)
    stopped = threading.Event()

    def report(preparation: Preparation) -> None:
        if preparation.ready:
            console.say(f"ready after {preparation.seconds:.1f} s: takes jobs from {database_of(settings)}")
        elif preparation.error is not None:
            stopped.set()
        else:
            console.step(preparation.step, preparation.done, preparation.total)

    services = Services(settings, listener=report)
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    services.start()
    try:
        stopped.wait()
        for number, handler in before.items():
            signal.signal(number, handler)  # a second one ends it at once
        if services.preparation.ready:
            console.say(f"takes no more jobs; those in work have {FINISH_S:.0f} s to end")
        if isinstance(services.jobs, SharedJobQueue):
            services.jobs.finish(FINISH_S)
    finally:
        services.close()
    if services.preparation.error is not None:
        raise services.preparation.error


def need_shared(settings: CoalesceSettings, command: str) -> None:
    """Raises InvalidInput unless jobs and uploads of these settings are for several processes."""
    if settings.database_url is None:
        raise InvalidInput(
            f"`{command}` is for servers that share a database, and the settings name none",
            hint="Set COALESCE_DATABASE_URL=postgresql://…; over a home `coalesce serve` does its jobs itself.",
        )
    if settings.uploads_url is None:
        raise InvalidInput(
            f"`{command}` needs a place of uploads that servers and workers share, and the settings name none",
            hint="Set COALESCE_UPLOADS_URL for all of them, for example to file:///srv/uploads or s3://BUCKET/uploads.",
        )
