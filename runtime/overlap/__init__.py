"""Running the draft beside the target: one interface, and a thread, a process of its own or neither behind it."""
