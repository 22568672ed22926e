"""The interfaces: REST, an OpenAI-compatible API, the command line and the web page. Decides nothing."""
