"""What the engine writes down for the auditor; all of it is private."""
