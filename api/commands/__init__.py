"""The command line, one group of commands a file; each exports `register(app)`."""
