"""``keys``: make, show, import, replace and revoke signing keys."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dpfedadamw.cli import display
from dpfedadamw.cli.options import JsonOption, Role, TimestampOption
from dpfedadamw.cli.terminal import ask, err, out, print_json, refuse

if TYPE_CHECKING:
    from reports.signatures.keys import KeyFiles

RoleOption = Annotated[Role, typer.Option(help="Who signs with it.")]
DirectoryOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="The key folder; your own by default."),
]
ProtectOption = Annotated[
    bool, typer.Option("--passphrase", help="Ask for a passphrase to encrypt it with.")
]
DaysOption = Annotated[int, typer.Option(metavar="N", help="Days that its certificate is valid.")]
_DAYS = 3650
_FIRST_YEAR = 1970


class ReasonName(StrEnum):
    """Why a key is revoked (RFC 5280)."""

    key_compromise = "key-compromise"
    superseded = "superseded"
    cessation_of_operation = "cessation-of-operation"
    unspecified = "unspecified"


def keys_new(
    role: RoleOption,
    directory: DirectoryOption = None,
    protect: ProtectOption = False,
    days: DaysOption = _DAYS,
    as_json: JsonOption = False,
) -> None:
    """Make a signing key (ECDSA P-256): ROLE.key, private, ROLE.pub, to give away, and ROLE.crt.

    An existing key is never overwritten; after it was revoked, the new one is ROLE-2.key. Set
    DPFEDADAMW_PASSPHRASE to use a protected key.
    """
    from reports.signatures import keyring, keys

    folder = directory or keys.default_directory()
    _show_made(keyring.new(role.value, folder, _new_passphrase(protect), days), as_json)


def keys_import(
    role: RoleOption,
    key: Annotated[Path, typer.Option(metavar="PEM", help="The private key: PKCS#8, ECDSA P-256.")],
    certificate: Annotated[
        Path | None,
        typer.Option(metavar="PEM", help="Its certificate, and those above it, in that order."),
    ] = None,
    directory: DirectoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a key that you have, with its chain of certificates, into the key folder.

    The passphrase is read from DPFEDADAMW_PASSPHRASE; the copy is encrypted with the same one.
    """
    from dpfedadamw.filing import after_training
    from reports.signatures import keyring, keys

    folder = directory or keys.default_directory()
    made = keyring.bring(role.value, folder, key, certificate, after_training.passphrase())
    _show_made(made, as_json)


def keys_show(directory: DirectoryOption = None, as_json: JsonOption = False) -> None:
    """Show the keys of a folder: fingerprints, validity, and which are replaced or revoked.

    Private keys stay closed: no passphrase is needed.
    """
    from reports.signatures import inspection, keys

    folder = directory or keys.default_directory()
    found = inspection.inspect(folder)
    if as_json:
        print_json([inspection.to_json(entry) for entry in found])
        return
    if not found:
        refuse(f"{folder}: holds no keys; make one with: dpfedadamw keys new --role trainer")
    out.print(Text(str(folder), style="bold"), soft_wrap=True)
    for entry in found:
        state = Text(entry.state, style="bold red" if entry.revoked else "bold green")
        if entry.state == "replaced":
            state = Text(entry.state, style="dim")
        rows = [
            ("fingerprint", entry.fingerprint),
            ("algorithm", entry.algorithm),
            ("created", entry.created or "unknown: it has no certificate"),
            ("certificate", entry.certificate),
            ("private key", entry.protection),
        ]
        if entry.revoked:
            rows.append(("revoked", entry.revoked))
        if entry.follows:
            rows.append(("follows", entry.follows))
        table = display.facts(rows)
        out.print(Text.assemble(("\n" + entry.name, "bold"), "  ", state))
        out.print(table)


def keys_rotate(
    role: RoleOption,
    directory: DirectoryOption = None,
    protect: ProtectOption = False,
    days: DaysOption = _DAYS,
    timestamp: TimestampOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a successor key, signed by the present one; it signs from now on.

    Anyone who trusts the old public key can follow to the new one, because each run carries the
    chain. With a timestamp this holds even if the old key is revoked later.
    """
    from dpfedadamw.filing import after_training
    from reports.signatures import keyring, keys

    made = keyring.rotate(
        role.value,
        directory or keys.default_directory(),
        after_training.passphrase(),
        _new_passphrase(protect),
        days,
        after_training.authority(timestamp),
    )
    _show_made(made, as_json)


def keys_revoke(
    role: RoleOption,
    reason: Annotated[ReasonName, typer.Option(help="Why.")],
    key: Annotated[
        Path | None,
        typer.Option(metavar="PUB", help="Public key to revoke; the present one by default."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="DATE", help="Date from which it is not trusted: 2026-11-21; now by default."
        ),
    ] = None,
    directory: DirectoryOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Revoke a key: add it, signed, to ROLE.revocations.json, a list to give to everyone.

    `verify --revocations FILE` then refuses what the key signed, unless a timestamp that the reader
    trusts shows that it was signed before. The key can no longer sign. Nobody who has the list can
    be made to trust it again.
    """
    from dpfedadamw.filing import after_training
    from reports.signatures import keyring, keys, statements

    folder = directory or keys.default_directory()
    if not yes:
        ask(f"revoke {key or f'the present {role.value} key'} of {folder} for good")
    path, entry = keyring.revoke(
        role.value,
        folder,
        keys.load_public(key) if key is not None else None,
        reason.value,
        _moment(since),
        after_training.passphrase(),
    )
    found = {
        "fingerprint": entry.key,
        "since": statements.written_time(entry.since),
        "reason": entry.reason,
        "list": str(path),
    }
    if as_json:
        print_json(found)
        return
    out.print(display.facts([(name, str(value)) for name, value in found.items()]))
    err.print(Text(f"give {path.name} to everyone who has the public key", style="yellow"))


def _moment(value: str | None) -> datetime | None:
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        moment = moment.astimezone(UTC).replace(microsecond=0)
    except (ValueError, OverflowError):
        refuse(f"--since: {value!r} is not a date; write 2026-11-21 or 2026-11-21T09:30:00Z")
    if moment.year < _FIRST_YEAR:
        # A list with a year of fewer digits could not be read again.
        refuse(f"--since: {value!r} is before {_FIRST_YEAR}, when there were no such keys")
    return moment


def _new_passphrase(protect: bool) -> str | None:
    from dpfedadamw.filing import after_training

    phrase = after_training.passphrase()
    if protect and phrase is None:
        phrase = typer.prompt("passphrase", hide_input=True, confirmation_prompt=True, err=True)
    return phrase


def _show_made(made: KeyFiles, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "private": str(made.private),
                "public": str(made.public),
                "fingerprint": made.fingerprint,
            }
        )
        return
    out.print(
        display.facts(
            [
                ("private key", f"{made.private}   keep it"),
                ("public key", f"{made.public}   give it away"),
                ("fingerprint", made.fingerprint),
            ]
        )
    )


app = typer.Typer(help="Make, show, replace and revoke signing keys.", no_args_is_help=True)
app.command("new")(keys_new)
app.command("import")(keys_import)
app.command("show")(keys_show)
app.command("rotate")(keys_rotate)
app.command("revoke")(keys_revoke)
