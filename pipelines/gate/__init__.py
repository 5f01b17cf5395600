"""From evidence to the gate's verdict on a challenger."""
