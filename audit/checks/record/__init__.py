"""Checks whose law is another where single records are protected."""
