"""Whether a drafted token and the next one will be accepted: features, network and rule of the controller ``survival``."""
