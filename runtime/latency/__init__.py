"""Latency measurement: what passes, drawing, verification and decisions take on this machine.

All cells of all tables are measured together, interleaved (`runtime.latency.cells`), so that tables can be divided by each other.
"""

from runtime.latency.cells import Cell, replaced, share_waited, sweep, tables_of
from runtime.latency.grid import LatencyConfig
from runtime.latency.measurement import all_cells

__all__ = ["Cell", "LatencyConfig", "all_cells", "replaced", "share_waited", "sweep", "tables_of"]
