"""DVC stages, corpus and pair training, tracking, registry and the command line."""
