"""Heads that predict how much of a chain will be accepted: H-RAD and the explicit length, fitted from texts (family ``head``)."""
