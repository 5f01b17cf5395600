"""The report's parts: statistics, tables, plots and the page."""
