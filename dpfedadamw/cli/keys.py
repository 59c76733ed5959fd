"""``keys``: make signing keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpfedadamw.cli import display
from dpfedadamw.cli.options import (
    JsonOption,
    Role,
)
from dpfedadamw.cli.terminal import (
    out,
    print_json,
)


def keys_new(
    role: Annotated[Role, typer.Option(help="Who will sign with it.")],
    directory: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to put it; your key folder by default."),
    ] = None,
    protect: Annotated[
        bool, typer.Option("--passphrase", help="Ask for a passphrase to encrypt it with.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a signing key (ECDSA P-256): ROLE.key, private, and ROLE.pub, to give away.

    An existing key is never overwritten. Set DPFEDADAMW_PASSPHRASE to use a protected key.
    """
    from dpfedadamw.cli import filing
    from reports import keys

    phrase = filing.passphrase()
    if protect and phrase is None:
        phrase = typer.prompt("passphrase", hide_input=True, confirmation_prompt=True, err=True)
    made = keys.create(role.value, directory or keys.default_directory(), phrase)
    fingerprint = keys.fingerprint(keys.load_public(made.public))
    if as_json:
        print_json(
            {
                "private": str(made.private),
                "public": str(made.public),
                "fingerprint": fingerprint,
            }
        )
        return
    out.print(
        display.facts(
            [
                ("private key", f"{made.private}   keep it"),
                ("public key", f"{made.public}   give it away"),
                ("fingerprint", fingerprint),
            ]
        )
    )
