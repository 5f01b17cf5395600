"""Labels: what a predictor is to say at places of a trace (stage ``labels``)."""
