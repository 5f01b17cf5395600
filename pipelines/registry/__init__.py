"""MLflow: runs, registered bundles and champions."""
