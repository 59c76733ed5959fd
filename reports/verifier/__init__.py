"""A second verifier of run directories, in another language: `verify.mjs`, and a page made of it.

It shares nothing with this package but the published format (docs/format.md). It is not copied into
runs: nobody believes a judge whom the accused brings.

The page speaks English, German and French. ``texts.json`` has every sentence of it, in the form of
the reports' own table (`reports.extensions.languages`); the command speaks English.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

FOLDER = Path(__file__).parent
PAGE = FOLDER / "verify.html"
OTHERS = ("de", "fr")

_FIELD = re.compile(r"\{\d\}")
_TAG = "said`"


def page() -> str:
    """Return the page: its markup around the text of the verifier.

    Its Content-Security-Policy names the digests of its script and its style, and allows nothing
    else: no connection, no other script, no form.

    Raises:
        ValueError: If a sentence lacks a language, or a file does not fit into the page.
    """
    script, shown, markup = (
        (FOLDER / name).read_text("utf-8") for name in ("verify.mjs", "page.mjs", "page.html")
    )
    table = texts()
    if lacking := sorted({*sentences(script), *sentences(shown), *standing(markup)} - {*table}):
        raise ValueError(f"texts.json lacks: {'; '.join(lacking)}")
    rows = (f"  {_json(english)}: {_json(others)},\n" for english, others in table.items())
    whole = f"{script}\nconst TEXTS = {{\n{''.join(rows)}}};\n{shown}"
    if "</script" in whole:
        raise ValueError("the verifier's text would end the page's script")
    whole = markup.replace(">SCRIPT<", f">\n{whole}<")
    for mark, tag in (("SCRIPT_SHA256", "script"), ("STYLE_SHA256", "style")):
        found = re.search(rf"<{tag}[^>]*>(.*?)</{tag}>", whole, re.DOTALL)
        if found is None:
            raise ValueError(f"the page has no {tag}")
        digest = hashlib.sha256(found[1].encode()).digest()
        whole = whole.replace(mark, base64.b64encode(digest).decode())
    return whole


def texts() -> dict[str, dict[str, str]]:
    """Return the page's sentences in other languages, by their English.

    Raises:
        ValueError: If a sentence lacks a language, or has other fields there.
    """
    table: dict[str, dict[str, str]] = {}
    for rows in json.loads((FOLDER / "texts.json").read_text("utf-8")).values():
        for row in rows:
            english, others = row["en"], {one: row.get(one, "") for one in OTHERS}
            for one, text in others.items():
                if not text or sorted(_FIELD.findall(text)) != sorted(_FIELD.findall(english)):
                    raise ValueError(f"texts.json: {english!r} has no {one} with the same fields")
            # French sets these marks off, and they may not begin a line.
            others["fr"] = re.sub(r" (?=[:;?!%»])", "\u00a0", others["fr"])
            table[english] = others
    return table


def sentences(script: str) -> list[str]:
    """Return the sentences of a script: what stands in its said`…`, with {1}, {2}, … for fields."""
    found: list[str] = []
    at = script.find(_TAG)
    while at >= 0:
        at = script.find(_TAG, _sentence(script, at + len(_TAG), found))
    return found


def _sentence(script: str, at: int, found: list[str]) -> int:
    """Read a sentence, and those in its fields, to its end."""
    text, fields = "", 0
    while script[at] != "`":
        if not script.startswith("${", at):
            text, at = text + script[at], at + 1
            continue
        at, depth, fields = at + 2, 1, fields + 1
        text += f"{{{fields}}}"
        while depth:
            if script.startswith(_TAG, at):
                at = _sentence(script, at + len(_TAG), found)
                continue
            depth += (script[at] == "{") - (script[at] == "}")
            at += 1
    found.append(text)
    return at + 1


def standing(markup: str) -> list[str]:
    """Return the sentences of the markup: what stands in its elements with data-said."""
    found = re.findall(r"<(\w+)[^>]*\bdata-said>(.*?)</\1>", markup, re.DOTALL)
    return [" ".join(text.split()) for _, text in found]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
