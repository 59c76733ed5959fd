"""Text of hostile files made fit to be shown in one line."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with "?" for every character that could steer a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)
