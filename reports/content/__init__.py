"""What a report says, computed from a run's files, before anything is laid out."""
