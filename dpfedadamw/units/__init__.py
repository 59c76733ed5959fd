"""What a run protects, each unit one object: its plan, its claims, its targets."""
