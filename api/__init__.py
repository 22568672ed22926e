"""The doors: REST, an OpenAI-compatible API, the command line and the web page. Decides nothing."""
