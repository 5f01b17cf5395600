"""From evidence to a champion: the gate's verdict, and what the model registry keeps of it."""
