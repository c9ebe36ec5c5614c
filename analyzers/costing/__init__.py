"""From recorded operators and model configurations to the cost of each device activity."""
