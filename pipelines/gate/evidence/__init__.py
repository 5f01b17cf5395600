"""What timed decodes say of an arm over a rival: prices, gains, their bounds and power. Pure functions of tables."""
