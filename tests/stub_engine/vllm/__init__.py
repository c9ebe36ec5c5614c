"""An engine that misbehaves in ways a real one cannot be brought to on demand. Found by PYTHONPATH only."""
