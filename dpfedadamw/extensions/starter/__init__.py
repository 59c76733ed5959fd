"""``new``: a project to start from, with a module, its training, its service and a test."""
