"""Stands in for `vllm serve`: takes its options, lists the model and its adapters, and dies when a question says so."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from fake_engine import FakeEngine, Handler


class FakeVllm(FakeEngine):
    """Serves the models of the command line."""

    def __init__(self, port: int, models: list[str]) -> None:
        super().__init__(port, _Handler)
        self.models = models


class _Handler(Handler):
    def writes(self, body: dict[str, Any]) -> str:
        if "crash" in str(body["messages"]):
            os._exit(3)
        if "Show the prompt" in str(body["messages"]):
            return str(body["messages"][0]["content"])
        return f"{body['model']} of process {os.getpid()}"


def main() -> None:
    """Serves until it is killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--generation-config", choices=["vllm"], required=True)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--dtype")
    parser.add_argument("--enable-lora", action="store_true")
    parser.add_argument("--max-lora-rank", type=int, choices=[1, 8, 16])
    parser.add_argument("--lora-modules", nargs="*", default=[])
    parser.add_argument("--fail")
    options = parser.parse_args()
    print(json.dumps(sys.argv[1:]), flush=True)
    if options.fail:
        sys.exit(f"ValueError: {options.fail}")
    adapters = [pair.partition("=")[0] for pair in options.lora_modules]
    FakeVllm(options.port, [options.model, *adapters]).serve_forever(poll_interval=0.05)


if __name__ == "__main__":
    main()
