"""Checks whose law is another where whole clients are protected."""
