"""What a ready server runs with, as `/readyz` and the settings view tell it."""

from __future__ import annotations

from typing import Any

from api.services import Services


def what_runs(services: Services) -> dict[str, Any]:
    """Generator, model, adapters, arms, embedder, FAISS device and books of a ready server; raises NotReady."""
    engine, library = services.engine, services.library
    documents = library.documents()
    return {
        "status": "ready",
        "generator": engine.generator.name,
        "model": engine.generator.model_name,
        "adapters": list(engine.generator.adapters),
        "arms": list(engine.arms),
        "quantization": services.settings.quantization if engine.generator.name == "local" else None,
        "embedder": library.embedder_name,
        "faiss_device": library.faiss_device,
        "documents": len(documents),
        "nodes": sum(document.nodes for document in documents),
        "seconds_to_ready": round(services.preparation.seconds, 3),
    }
