"""A second verifier of run directories, in another language: `verify.mjs`, and a page made of it.

It shares nothing with this package but the published format (docs/format.md). It is not copied into
runs: nobody believes a judge whom the accused brings.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

FOLDER = Path(__file__).parent
PAGE = FOLDER / "verify.html"


def page() -> str:
    """Return the page: its markup around the text of the verifier.

    Its Content-Security-Policy names the digests of its script and its style, and allows nothing
    else: no connection, no other script, no form.
    """
    script, shown, markup = (
        (FOLDER / name).read_text("utf-8") for name in ("verify.mjs", "page.mjs", "page.html")
    )
    if "</script" in script + shown:
        raise ValueError("the verifier's text would end the page's script")
    whole = markup.replace(">SCRIPT<", f">\n{script}{shown}<")
    for mark, tag in (("SCRIPT_SHA256", "script"), ("STYLE_SHA256", "style")):
        found = re.search(rf"<{tag}[^>]*>(.*?)</{tag}>", whole, re.DOTALL)
        if found is None:
            raise ValueError(f"the page has no {tag}")
        digest = hashlib.sha256(found[1].encode()).digest()
        whole = whole.replace(mark, base64.b64encode(digest).decode())
    return whole
