"""What passes cost on a machine, and the throughput that follows: measured tables, acceptance laws, predictions."""
