"""A cross-encoder that reads question and passage together; only when one is configured."""

from __future__ import annotations

import math
import threading
from typing import Any

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle

from indexes.types import Hit
from rag.errors import ModelCannotLoad
from rag.retrieval.llama_nodes import to_llama


class CrossEncoderReranker(BaseNodePostprocessor):
    """Orders the first `depth` nodes by a cross-encoder's score; light to make, the model loads when first used.

    Attributes:
        model: path or hub name for `sentence_transformers.CrossEncoder`.
        depth: how many of the best nodes are read; the others keep their order behind them.
    """

    model: str
    depth: int = 30
    device: str | None = None
    _encoder: Any = PrivateAttr(default=None)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    @classmethod
    def class_name(cls) -> str:
        """The name llama-index writes into saved programs."""
        return "CrossEncoderReranker"

    def load(self) -> None:
        """Loads the model.

        Raises:
            ModelCannotLoad: no such model on disk.
        """
        with self._lock:
            if self._encoder is None:
                from sentence_transformers import CrossEncoder

                try:
                    self._encoder = CrossEncoder(self.model, device=self.device)
                except (OSError, ValueError, RuntimeError) as error:
                    raise ModelCannotLoad(
                        f"the reranker {self.model!r} cannot be loaded: {error}",
                        hint="give a folder with a cross-encoder, or remove the `reranker` setting",
                    ) from error

    def scores(self, query: str, texts: list[str]) -> list[float]:
        """Relevance of each text, a probability; higher is better."""
        self.load()
        with self._lock:
            raw = self._encoder.predict([(query, text) for text in texts], show_progress_bar=False)
        values = [float(value) for value in raw]
        # Some models give probabilities, some give logits; a mixture would not keep the order.
        return values if all(0.0 <= value <= 1.0 for value in values) else [_sigmoid(value) for value in values]

    def rerank(self, query: str, hits: list[Hit]) -> list[Hit]:
        """`hits` with the first `depth` in the cross-encoder's order and with its scores."""
        nodes = [to_llama(hit) for hit in hits]
        by_id = {hit.node.node_id: hit.node for hit in hits}
        ranked = self._postprocess_nodes(nodes, QueryBundle(query))
        return [Hit(by_id[item.node.node_id], float(item.score or 0.0)) for item in ranked]

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None or not nodes:
            return nodes
        head, tail = nodes[: self.depth], nodes[self.depth :]
        texts = [f"{item.node.metadata.get('section', '')}\n{item.node.get_content()}" for item in head]
        for item, score in zip(head, self.scores(query_bundle.query_str, texts), strict=True):
            item.score = score
        head.sort(key=lambda item: -(item.score or 0.0))
        floor = min((item.score or 0.0 for item in head), default=0.0)
        for place, item in enumerate(tail, 1):
            item.score = floor - 1e-6 * place
        return head + tail


def _sigmoid(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-max(min(value, 60.0), -60.0)))
