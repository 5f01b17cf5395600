"""Whether a drafted token will be accepted: features, networks and rules of models that stop drafting."""
