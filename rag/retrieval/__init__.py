"""From a question to ranked nodes: the query's language and filters, two retrievers, fusion, an optional reranker."""
