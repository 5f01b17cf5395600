"""Is an engine's speculation lossless?

draftwright audit --server http://localhost:8000 --target data/smollm2/pair/target
"""

from pipelines.audit.engine import add_arguments, run

__all__ = ["add_arguments", "run"]
