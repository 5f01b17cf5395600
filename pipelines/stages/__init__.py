"""One file for each stage of dvc.yaml, under its name; `python -m pipelines STAGE` runs it."""
