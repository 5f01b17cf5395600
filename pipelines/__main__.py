"""``python -m pipelines`` is ``draftwright``."""

from pipelines.cli import main

main()
