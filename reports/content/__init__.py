"""What reports say: one file a section, from a run's files to typed data to blocks of a page."""
