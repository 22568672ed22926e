"""A real llama-server, from the wheel `xllamacpp`; run by that wheel's own Python with its options as JSON."""

from __future__ import annotations

import json
import sys
import threading

import xllamacpp  # type: ignore[import-not-found]  # in an environment of its own


def main() -> None:
    """Serves until it is killed."""
    wanted = json.loads(sys.argv[1])
    options = xllamacpp.CommonParams()
    options.model.path = wanted["model"]
    options.model_alias = {wanted["alias"]}
    options.port = wanted["port"]
    options.n_ctx = wanted["context_tokens"]
    options.n_parallel = wanted["at_once"]
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
    adapters = []
    for path in wanted["adapters"]:
        adapter = xllamacpp.CommonAdapterLoraInfo()
        adapter.path, adapter.scale = path, 1.0
        adapters.append(adapter)
    options.lora_adapters = adapters
    server = xllamacpp.Server(options)
    print("serving", server.listening_address, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
