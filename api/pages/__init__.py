"""The web page (NiceGUI), on the same server. It drives the same engine, queue and library as REST."""
