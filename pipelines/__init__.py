"""DVC stages, corpus and pair training, tracking, registry and the command line."""

PACKAGES = ("pipelines", "trace_collection", "predictors", "runtime")  # of this project
