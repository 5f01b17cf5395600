"""Labels, Lightning training, calibration: learns from files, runs no decoder."""
