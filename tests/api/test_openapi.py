"""Every call of `/openapi.json` by schemathesis: no 5xx, no reply that the document does not name, ids followed up."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from api_fakes import Live, running

from api.settings import load_settings

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
_SERVED = re.compile(r'coalesce_http_requests_total\{.*status="(\d+)"\} ([\d.]+)')


def faultless(live: Live, *options: str) -> bool:
    """Whether schemathesis finds no fault in a server; prints what it says."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{live.address}/openapi.json", "--checks", CHECKS]
    more = ["--no-color", "--suppress-health-check", "all", "--warnings", "off", "--request-timeout", "60", *options]
    done = subprocess.run(
        [*command, *more], capture_output=True, text=True, check=False, cwd=live.services.settings.home
    )
    print(done.stdout + done.stderr)
    return done.returncode == 0


def served(live: Live) -> dict[str, float]:
    """How many calls were answered, by the first digit of the status."""
    counts: dict[str, float] = {}
    for status, count in _SERVED.findall(live.client.get("/metrics").text):
        counts[status[0]] = counts.get(status[0], 0) + float(count)
    return counts


@pytest.mark.parametrize(
    ("options", "least"),
    [
        (("--phases", "fuzzing", "--max-examples", "7"), 400),  # calls that follow on others differ from run to run
        pytest.param(
            ("--phases", "coverage,fuzzing,stateful", "--max-examples", "85", "--continue-on-failure"),
            10_000,
            marks=[pytest.mark.slow, pytest.mark.timeout(3000)],
        ),
    ],
)
@pytest.mark.integration
def test_no_call_that_the_document_allows_or_forbids_makes_a_5xx_or_a_reply_that_it_does_not_name(
    tmp_path: Path, options: tuple[str, ...], least: int, record_property: Any
) -> None:
    def compare(*_: Any) -> dict[str, Any]:
        return {}

    with running(load_settings({"home": tmp_path, "max_upload_bytes": 200_000}), compare=compare) as live:
        assert faultless(live, *options, "--seed", "1")
        counts = served(live)
    record_property("tried", int(sum(counts.values())))
    assert sum(counts.values()) >= least and counts.get("5", 0) == 0, counts


def test_every_error_that_the_document_names_has_the_one_form(shared: Live) -> None:
    document = shared.get("/openapi.json")
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            errors = {status: reply for status, reply in operation["responses"].items() if status[0] in "45"}
            assert not path.startswith("/v1") or {"401", "403", "429", "503"} <= errors.keys(), (method, path)
            assert "requestBody" not in operation or {"400", "413", "422"} <= errors.keys(), (method, path)
            for reply in errors.values():
                assert reply["content"] == {
                    "application/json": {"schema": {"$ref": "#/components/schemas/ErrorOut"}}
                }, (method, path)
