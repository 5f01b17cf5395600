"""Controllers on recorded texts, priced by a latency profile: no model is run."""
