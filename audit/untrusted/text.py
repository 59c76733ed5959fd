"""Text of hostile files made fit to be shown in one line."""

from __future__ import annotations

import re

# What steers a terminal or reorders what it shows: control and format characters but the joiners
# that Arabic and Indic words need, halves of pairs, and line ends other than
# the line feed.
STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e"
    "\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0001-\U000e007f]"
)


def steerless(text: str) -> str:
    """The text with "?" for every character that could steer a terminal; its lines stay."""
    return STEERING.sub("?", text)


def printable(text: str) -> str:
    """The text with "?" for every character that could steer a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)
