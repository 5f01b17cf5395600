"""What a controller would do, and what that would take, on recorded texts: no model is run."""
