"""Changed PDFs: what somebody does to a file that a person signed, or is about to sign.

Three families ("Shadow Attacks", NDSS 2021): *hide* what was signed, *replace* it, or prepare both
before the signature and switch over afterwards; and older ones that wrap, move or take away the
signature ("1 Trillion Dollar Refund", CCS 2019). Each function gets the signed bytes and returns
the changed ones; those in `BEFORE` get bytes that are signed only afterwards.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pikepdf
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from pyhanko.pdf_utils import generic
from pyhanko.pdf_utils.content import RawContent
from pyhanko.pdf_utils.generic import pdf_name
from pyhanko.pdf_utils.layout import BoxConstraints
from pyhanko.pdf_utils.reader import PdfFileReader
from pyhanko.pdf_utils.writer import PdfFileWriter
from pyhanko.sign import fields, signers
from pyhanko.stamp import StaticStampStyle

from reports.signatures import pades
from reports.signatures.keyring import SigningKey
from tests.reports.signing_keys import fresh

FORGED = "Approved. No conditions."
Attack = Callable[[bytes], bytes]
AFTER: dict[str, Attack] = {}
BEFORE: dict[str, Attack] = {}
# Prepared before the signature and switched over behind it.
BOTH: dict[str, tuple[Attack, Attack]] = {}


def after(attack: Attack) -> Attack:
    """Note an attack on a signed file by its name in words."""
    AFTER[attack.__name__.replace("_", " ")] = attack
    return attack


def before(attack: Attack) -> Attack:
    """Note an attack on a file that is signed only afterwards."""
    BEFORE[attack.__name__.replace("_", " ")] = attack
    return attack


# Tools.


def updated(data: bytes, change: Callable[[Any], None], **options: Any) -> bytes:
    """A file with one more state, in which something is changed."""
    writer = pades._Writer(io.BytesIO(data), **options)
    change(writer)
    written = io.BytesIO()
    writer.write(written)
    return written.getvalue()


def dictionary(**entries: Any) -> generic.DictionaryObject:
    return generic.DictionaryObject({pdf_name(f"/{key}"): value for key, value in entries.items()})


def array(*entries: Any) -> generic.ArrayObject:
    return generic.ArrayObject(entries)


def numbers(*values: float) -> generic.ArrayObject:
    return array(*(generic.FloatObject(value) for value in values))


def text(value: str) -> Any:
    return generic.pdf_string(value)


def stream(content: bytes, **entries: Any) -> generic.StreamObject:
    return generic.StreamObject(dictionary(**entries), stream_data=content)


def page_reference(handler: Any, number: int = 0) -> Any:
    """The reference to a page, counted from 0."""
    return handler.find_page_for_modification(number)[0]


def page_of(writer: Any) -> Any:
    reference = page_reference(writer)
    page = reference.get_object()
    writer.mark_update(reference)
    return page


# White over the page, and the forged words on it; Courier needs no font program.
COVER = b"q 1 1 1 rg 0 0 600 850 re f Q BT /F 20 Tf 60 700 Td (Approved. No conditions.) Tj ET"


def resources() -> Any:
    font = dictionary(
        Type=pdf_name("/Font"), Subtype=pdf_name("/Type1"), BaseFont=pdf_name("/Courier")
    )
    return dictionary(Font=dictionary(F=font))


def cover(writer: Any) -> Any:
    """A form that covers a page with the forged words."""
    return writer.add_object(
        stream(
            COVER,
            Type=pdf_name("/XObject"),
            Subtype=pdf_name("/Form"),
            BBox=numbers(0, 0, 600, 850),
            Resources=resources(),
        )
    )


def annotate(writer: Any, kind: str, **entries: Any) -> Any:
    """Put an annotation over the whole first page."""
    page = page_of(writer)
    widget = dictionary(
        Type=pdf_name("/Annot"),
        Subtype=pdf_name(kind),
        Rect=numbers(0, 0, 600, 850),
        F=generic.NumberObject(4),
        AP=dictionary(N=cover(writer)),
        **entries,
    )
    reference = writer.add_object(widget)
    there = list(page["/Annots"]) if "/Annots" in page else []
    page[pdf_name("/Annots")] = array(*there, reference)
    return reference


def form(writer: Any) -> Any:
    """The form of a file, made if there is none."""
    if "/AcroForm" not in writer.root:
        writer.root[pdf_name("/AcroForm")] = writer.add_object(
            dictionary(Fields=array(), SigFlags=generic.NumberObject(3))
        )
        writer.update_root()
    found = writer.root["/AcroForm"]
    writer.update_container(found)
    return found


def add_field(writer: Any, reference: Any) -> None:
    there = form(writer)
    there[pdf_name("/Fields")] = array(*there["/Fields"], reference)


def signature_field(writer: Any) -> Any:
    """The first signature's field, to be changed."""
    (*_, field) = next(iter(fields.enumerate_sig_fields(writer, filled_status=True)))
    field = field.get_object()
    writer.update_container(field)
    return field


def forged_data(data: bytes) -> bytes:
    """What is inside, with the forged decision."""
    for name in ("sign-off.json", "report.json"):
        try:
            inside = pades.attached(data, "file", name)
        except pades.PdfSignatureError:
            continue
        return re.sub(rb'"text": "[^"]*"', b'"text": "%s"' % FORGED.encode(), inside)
    raise AssertionError("a file without data")


def signed_by(
    data: bytes, key: SigningKey, field: str, box: tuple[int, int, int, int] | None = None
) -> bytes:
    """One more signature, as another program makes it; visible where it has a box."""
    place = fields.SigFieldSpec(field, on_page=0, box=box)
    signer = signers.PdfSigner(
        signers.PdfSignatureMetadata(field_name=field, md_algorithm="sha256"),
        signer=pades._Signer(key),
        new_field_spec=place,
    )
    return bytes(signer.sign_pdf(pades._Writer(io.BytesIO(data))).getvalue())


def named_like_the_officer() -> SigningKey:
    """A key of somebody else with a certificate in the officer's name."""
    return named("A. Person, officer")


def named(said: str) -> SigningKey:
    """A new key with a certificate in any name."""
    mallory = fresh("auditor")
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, said)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(mallory.public)
        .serial_number(7)
        .not_valid_before(mallory.chain[0].not_valid_before_utc)
        .not_valid_after(mallory.chain[0].not_valid_after_utc)
        .sign(mallory.private, hashes.SHA256())
    )
    return SigningKey("auditor", mallory.private, (certificate,))


# Replace: the data inside.


def swap_data(writer: Any, data: bytes) -> None:
    file = writer.root["/AF"][0].get_object()
    embedded = file["/EF"].raw_get("/F")
    old = embedded.get_object()
    new = stream(
        forged_data(data), **{key[1:]: old[key] for key in ("/Type", "/Subtype") if key in old}
    )
    file["/EF"][pdf_name("/F")] = writer.add_object(new)
    writer.update_container(file["/EF"])
    writer.update_container(file)


@after
def data_are_replaced_by_a_new_stream(data: bytes) -> bytes:
    return updated(data, lambda writer: swap_data(writer, data))


def overwrite(data: bytes, number: int, body: bytes, extra: bytes = b"") -> bytes:
    """A file with one more state, written by hand, in which an object is another one."""
    return by_hand(data, {number: body}, extra)


def by_hand(
    data: bytes,
    objects: dict[int, bytes],
    extra: bytes = b"",
    previous: int | None = None,
    root: int | None = None,
    freed: tuple[int, ...] = (),
    offsets: dict[int, int] | None = None,
) -> bytes:
    """A file with one more state, whose objects and cross-references are written by hand.

    Args:
        data: The file.
        objects: Bodies of the objects that are written, by number.
        extra: More entries of the trailer.
        previous: Where the state before is said to stand; the last one if not given.
        root: Number of the catalog; that of the file if not given.
        freed: Numbers of objects that are taken away.
        offsets: Objects that are said to stand somewhere in the file already.
    """
    reader = PdfFileReader(io.BytesIO(data))
    written = bytearray(data)
    places = dict(offsets or {})
    for number, body in objects.items():
        written += b"\n"
        places[number] = len(written)
        written += b"%d 0 obj\n%s\nendobj" % (number, body)
    written += b"\n"
    start = len(written)
    written += b"xref\n"
    for number in sorted([*places, *freed]):
        written += b"%d 1\n" % number
        if number in places:
            written += b"%010d 00000 n \n" % places[number]
        else:
            written += b"0000000000 00001 f \n"
    size = max([int(reader.trailer["/Size"]), *(number + 1 for number in places)])
    top = root if root is not None else reader.root_ref.idnum
    last = reader.last_startxref if previous is None else previous
    identity = b"<" + bytes(reader.document_id[0]).hex().encode() + b">"
    written += b"trailer\n<< /Size %d /Root %d 0 R /ID [%s %s] %s%s>>\n" % (
        size, top, identity, identity, b"/Prev %d " % last if last >= 0 else b"", extra,
    )  # fmt: skip
    written += b"startxref\n%d\n%%%%EOF" % start
    return bytes(written)


def embedded_number(data: bytes) -> int:
    reader = PdfFileReader(io.BytesIO(data))
    return int(reader.root["/AF"][0].get_object()["/EF"].raw_get("/F").idnum)


def contents_number(data: bytes) -> int:
    page = first_page(data)
    found = page.raw_get("/Contents")
    found = found[0] if isinstance(found, generic.ArrayObject) else found
    return int(found.idnum)


def first_page(data: bytes) -> Any:
    page = PdfFileReader(io.BytesIO(data)).root["/Pages"]
    while page["/Type"] == "/Pages":
        page = page["/Kids"][0].get_object()
    return page


def body(content: bytes, entries: bytes = b"") -> bytes:
    return b"<< /Length %d %s>>\nstream\n%s\nendstream" % (len(content), entries, content)


@after
def data_are_overwritten_in_place(data: bytes) -> bytes:
    return overwrite(data, embedded_number(data), body(forged_data(data), b"/Type /EmbeddedFile "))


@after
def the_list_of_associated_files_names_another_file(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        file = stream(forged_data(data), Type=pdf_name("/EmbeddedFile"))
        name = text("sign-off.json" if b"sign-off.json" in data else "report.json")
        named = dictionary(
            Type=pdf_name("/Filespec"), F=name, UF=name, EF=dictionary(F=writer.add_object(file))
        )
        writer.root[pdf_name("/AF")] = array(writer.add_object(named))
        writer.update_root()

    return updated(data, change)


@after
def the_names_of_embedded_files_lead_to_another_file(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        file = stream(forged_data(data), Type=pdf_name("/EmbeddedFile"))
        name = text("sign-off.json")
        named = dictionary(
            Type=pdf_name("/Filespec"), F=name, UF=name, EF=dictionary(F=writer.add_object(file))
        )
        tree = dictionary(Names=array(name, writer.add_object(named)))
        writer.root[pdf_name("/Names")] = dictionary(EmbeddedFiles=tree)
        writer.update_root()

    return updated(data, change)


# Replace: the pages.


@after
def a_page_has_other_contents(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        page = page_of(writer)
        page[pdf_name("/Contents")] = writer.add_object(stream(COVER))
        page[pdf_name("/Resources")] = resources()

    return updated(data, change)


@after
def a_pages_contents_are_overwritten_in_place(data: bytes) -> bytes:
    return overwrite(data, contents_number(data), body(COVER))


@after
def more_contents_are_drawn_over_a_page(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        page = page_of(writer)
        there = page.raw_get("/Contents")
        there = list(there) if isinstance(there, generic.ArrayObject) else [there]
        page[pdf_name("/Contents")] = array(*there, writer.add_object(stream(COVER)))

    return updated(data, change)


@after
def pages_stand_in_another_order(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        pages = writer.root["/Pages"]
        pages[pdf_name("/Kids")] = array(*reversed(list(pages["/Kids"])), *list(pages["/Kids"])[:1])
        pages[pdf_name("/Count")] = generic.NumberObject(int(pages["/Count"]) + 1)
        writer.update_container(pages)

    return updated(data, change)


@after
def a_page_is_put_in_front(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        pages = writer.root["/Pages"]
        page = dictionary(
            Type=pdf_name("/Page"),
            Parent=writer.root.raw_get("/Pages"),
            MediaBox=numbers(0, 0, 595, 842),
            Contents=writer.add_object(stream(COVER)),
            Resources=resources(),
        )
        pages[pdf_name("/Kids")] = array(writer.add_object(page), *pages["/Kids"])
        pages[pdf_name("/Count")] = generic.NumberObject(int(pages["/Count"]) + 1)
        writer.update_container(pages)

    return updated(data, change)


@after
def the_catalog_names_another_tree_of_pages(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        tree = dictionary(Type=pdf_name("/Pages"), Count=generic.NumberObject(1))
        reference = writer.add_object(tree)
        page = dictionary(
            Type=pdf_name("/Page"),
            Parent=reference,
            MediaBox=numbers(0, 0, 595, 842),
            Contents=writer.add_object(stream(COVER)),
            Resources=resources(),
        )
        tree[pdf_name("/Kids")] = array(writer.add_object(page))
        writer.root[pdf_name("/Pages")] = reference
        writer.update_root()

    return updated(data, change)


@after
def the_trailer_names_another_catalog(data: bytes) -> bytes:
    reader = PdfFileReader(io.BytesIO(data))
    size = int(reader.trailer["/Size"])
    catalog, pages, page, content = range(size, size + 4)
    objects = {
        catalog: b"<< /Type /Catalog /Pages %d 0 R >>" % pages,
        pages: b"<< /Type /Pages /Count 1 /Kids [%d 0 R] >>" % page,
        page: b"<< /Type /Page /Parent %d 0 R /MediaBox [0 0 595 842] /Contents %d 0 R >>"
        % (pages, content),
        content: body(COVER),
    }
    return by_hand(data, objects, root=catalog)


@after
def a_pages_visible_part_is_cut_down(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        page_of(writer)[pdf_name("/CropBox")] = numbers(0, 500, 300, 600)

    return updated(data, change)


@after
def a_page_is_turned_over(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        page_of(writer)[pdf_name("/Rotate")] = generic.NumberObject(180)

    return updated(data, change)


@after
def a_font_shows_other_glyphs(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        page = page_of(writer)
        page[pdf_name("/Resources")] = resources()

    return updated(data, change)


@after
def a_fonts_program_is_overwritten(data: bytes) -> bytes:
    reader = PdfFileReader(io.BytesIO(data))
    for number in range(1, int(reader.trailer["/Size"])):
        try:
            found = reader.get_object(generic.Reference(number, 0, reader))
        except Exception:
            continue
        for key in ("/FontFile2", "/FontFile3"):
            if isinstance(found, dict) and key in found:
                return overwrite(data, int(found.raw_get(key).idnum), body(b"other glyphs"))
    raise AssertionError("a file without typefaces")


@after
def what_is_read_out_is_replaced(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        tree = writer.root["/StructTreeRoot"]
        top = tree["/K"]
        top = top[0].get_object() if isinstance(top, list) else top
        top[pdf_name("/ActualText")] = text(FORGED)
        writer.update_container(top)

    return updated(data, change)


@after
def the_outline_has_another_title(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        entry = dictionary(Title=text(FORGED))
        reference = writer.add_object(entry)
        outline = dictionary(First=reference, Last=reference, Count=generic.NumberObject(1))
        writer.root[pdf_name("/Outlines")] = writer.add_object(outline)
        writer.update_root()

    return updated(data, change)


# Hide: something is laid over what was signed.


def over(kind: str, **entries: Any) -> Attack:
    def attack(data: bytes) -> bytes:
        def change(writer: Any) -> None:
            annotate(writer, kind, **entries)

        return updated(data, change)

    return attack


for kind in ("FreeText", "Stamp", "Square", "Redact", "Watermark", "Ink", "Highlight", "Popup"):
    AFTER[f"an annotation {kind} lies over the page"] = over(f"/{kind}", Contents=text(FORGED))


@after
def a_filled_in_text_field_lies_over_the_page(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        add_field(
            writer,
            annotate(writer, "/Widget", FT=pdf_name("/Tx"), T=text("Decision"), V=text(FORGED)),
        )

    return updated(data, change)


@after
def a_button_that_shows_something_lies_over_the_page(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        add_field(writer, annotate(writer, "/Widget", FT=pdf_name("/Btn"), T=text("Button")))

    return updated(data, change)


@after
def a_place_for_a_signature_is_left_empty_and_shows_something(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        add_field(writer, annotate(writer, "/Widget", FT=pdf_name("/Sig"), T=text("Empty")))

    return updated(data, change)


@after
def a_stranger_signs_and_draws_over_the_page(data: bytes) -> bytes:
    style = StaticStampStyle(
        background=RawContent(COVER, box=BoxConstraints(600, 850)),
        border_width=0,
        background_opacity=1,
    )
    signer = signers.PdfSigner(
        signers.PdfSignatureMetadata(field_name="Stranger", md_algorithm="sha256"),
        signer=pades._Signer(fresh("auditor")),
        stamp_style=style,
        new_field_spec=fields.SigFieldSpec("Stranger", on_page=0, box=(0, 0, 600, 850)),
    )
    return bytes(signer.sign_pdf(pades._Writer(io.BytesIO(data))).getvalue())


@after
def a_signature_of_an_unknown_kind_draws_over_the_page(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        value = dictionary(
            Type=pdf_name("/Sig"), Filter=pdf_name("/Other"), SubFilter=pdf_name("/other.kind")
        )
        reference = annotate(
            writer,
            "/Widget",
            FT=pdf_name("/Sig"),
            T=text("Odd"),
            V=writer.add_object(value),
        )
        add_field(writer, reference)

    return updated(data, change)


@after
def the_signatures_own_field_is_given_a_look(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        field = signature_field(writer)
        field[pdf_name("/Rect")] = numbers(0, 0, 600, 850)
        field[pdf_name("/AP")] = dictionary(N=cover(writer))

    return updated(data, change)


@after
def the_signatures_own_look_is_overwritten_where_it_stands(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        field = signature_field(writer)
        field[pdf_name("/AP")] = dictionary(N=cover(writer))

    return updated(data, change)


@after
def optional_content_covers_the_page(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        group = writer.add_object(dictionary(Type=pdf_name("/OCG"), Name=text("Cover")))
        writer.root[pdf_name("/OCProperties")] = dictionary(
            OCGs=array(group), D=dictionary(ON=array(group))
        )
        writer.update_root()
        page = page_of(writer)
        page[pdf_name("/Contents")] = array(
            page.raw_get("/Contents"), writer.add_object(stream(COVER))
        )

    return updated(data, change)


@after
def it_opens_as_a_collection_of_other_files(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        writer.root[pdf_name("/Collection")] = dictionary(Type=pdf_name("/Collection"))
        writer.update_root()

    return updated(data, change)


# Act: what a viewer does by itself.


def script() -> Any:
    return dictionary(S=pdf_name("/JavaScript"), JS=text("this.getField('x').value = 'Approved'"))


@after
def a_script_runs_when_it_is_opened(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        writer.root[pdf_name("/OpenAction")] = script()
        writer.update_root()

    return updated(data, change)


@after
def a_script_runs_before_it_is_printed(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        writer.root[pdf_name("/AA")] = dictionary(WP=script())
        writer.update_root()

    return updated(data, change)


@after
def a_script_stands_among_the_names(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        tree = dictionary(Names=array(text("go"), writer.add_object(script())))
        names = writer.root["/Names"] if "/Names" in writer.root else dictionary()
        names[pdf_name("/JavaScript")] = tree
        writer.root[pdf_name("/Names")] = names
        writer.update_root()
        writer.update_container(names)

    return updated(data, change)


@after
def a_script_runs_on_a_page(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        page_of(writer)[pdf_name("/AA")] = dictionary(O=script())

    return updated(data, change)


# The signature itself: taken away, moved, wrapped, replaced.


@after
def the_signatures_field_is_taken_out_of_the_form(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        form(writer)[pdf_name("/Fields")] = array()

    return updated(data, change)


@after
def the_form_is_taken_away(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        writer.root.pop("/AcroForm")
        writer.update_root()

    return updated(data, change)


@after
def data_are_replaced_and_a_namesake_signs_in_the_officers_place(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        swap_data(writer, data)
        form(writer)[pdf_name("/Fields")] = array()

    return signed_by(updated(data, change), named_like_the_officer(), "Signature")


@after
def data_are_replaced_and_a_namesake_signs_too(data: bytes) -> bytes:
    return signed_by(data_are_replaced_by_a_new_stream(data), named_like_the_officer(), "Signature")


@after
def a_page_is_covered_and_a_stranger_signs_that(data: bytes) -> bytes:
    return signed_by(AFTER["an annotation Stamp lies over the page"](data), fresh("auditor"), "S")


@after
def the_value_of_the_field_is_another_signature(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        field = signature_field(writer)
        value = generic.DictionaryObject(field["/V"])
        value[pdf_name("/Name")] = text("Somebody else")
        field[pdf_name("/V")] = writer.add_object(value)

    return updated(data, change)


@after
def the_signatures_dictionary_is_overwritten(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        value = signature_field(writer)["/V"]
        value[pdf_name("/Reason")] = text(FORGED)
        writer.update_container(value)

    return updated(data, change)


@after
def the_signature_has_no_contents(data: bytes) -> bytes:
    return re.sub(
        rb"/Contents <[0-9A-Fa-f]+>",
        lambda found: b"/Contents null".ljust(len(found[0])),
        data,
        count=1,
    )


@after
def the_signature_has_no_byte_range(data: bytes) -> bytes:
    return data.replace(b"/ByteRange", b"/ByteRanch", 1)


@after
def the_signature_is_all_zeros(data: bytes) -> bytes:
    return re.sub(
        rb"/Contents <([0-9A-Fa-f]{200,})>",
        lambda m: b"/Contents <" + b"0" * len(m[1]) + b">",
        data,
        count=1,
    )


def ranged(data: bytes, change: Callable[[list[int]], list[int]]) -> bytes:
    found = re.search(rb"/ByteRange \[([0-9 ]+)\]", data)
    assert found is not None
    places = change([int(place) for place in found[1].split()])
    return (
        data[: found.start(1)]
        + b" ".join(b"%d" % p for p in places).ljust(len(found[1]))
        + data[found.end(1) :]
    )


@after
def the_byte_range_has_a_wider_gap(data: bytes) -> bytes:
    """Room behind the signature, in which forged data stand unsigned."""
    found = re.search(rb"/Contents <[0-9A-Fa-f]+>", data)
    assert found is not None
    room = b" /Forged (%s) " % FORGED.encode()
    wider = data[: found.end()] + room + data[found.end() :]
    return ranged(wider, lambda r: [r[0], r[1], r[2] + len(room), r[3]])


@after
def the_byte_range_begins_later(data: bytes) -> bytes:
    return ranged(b"%PDF-1.7\n" + data, lambda r: [9, r[1], r[2] + 9, r[3]])


@after
def the_byte_range_has_six_numbers(data: bytes) -> bytes:
    return ranged(data, lambda r: [0, 9, 9, r[1] - 9, r[2], r[3]])


@after
def the_byte_range_ends_early(data: bytes) -> bytes:
    return ranged(data, lambda r: [r[0], r[1], r[2], r[3] - 20])


@after
def the_signature_is_moved_behind_and_wrapped(data: bytes) -> bytes:
    """The signed bytes stand, and a copy of the signature's object points at them from behind."""
    reader = PdfFileReader(io.BytesIO(data))
    (field, *_) = [one[2] for one in fields.enumerate_sig_fields(reader, filled_status=True)]
    number = int(field.get_object().raw_get("/V").idnum)
    found = re.search(rb"%d 0 obj\s(.*?)endobj" % number, data, re.DOTALL)
    assert found is not None
    return by_hand(data, {number: found[1], contents_number(data): body(COVER)})


# The file's own structure.


@after
def cross_references_are_hybrid(data: bytes) -> bytes:
    reader = PdfFileReader(io.BytesIO(data))
    size = int(reader.trailer["/Size"])
    number = contents_number(data)
    content = b"%d 0 obj\n%s\nendobj" % (number, body(COVER))
    grown = data + b"\n" + content + b"\n"
    place = len(grown)
    entries = b"\x01" + (len(data) + 1).to_bytes(4, "big") + b"\x00"
    index = b"/Type /XRef /Size %d /W [1 4 1] /Index [%d 1] " % (size + 1, number)
    grown += b"%d 0 obj\n%s\nendobj" % (size, body(entries, index))
    start = len(grown) + 1
    trailer = b"\nxref\n0 1\n0000000000 65535 f \ntrailer\n"
    trailer += b"<< /Size %d /Root %d 0 R /Prev %d /XRefStm %d >>\n" % (
        int(reader.trailer["/Size"]) + 1, reader.root_ref.idnum, reader.last_startxref, place,
    )  # fmt: skip
    return grown + trailer + b"startxref\n%d\n%%%%EOF" % start


@after
def an_object_stream_overrides_the_catalog(data: bytes) -> bytes:
    reader = PdfFileReader(io.BytesIO(data))
    size, root = int(reader.trailer["/Size"]), reader.root_ref.idnum
    inner = b"%d 0 << /Type /Catalog /Pages %d 0 R >>" % (root, reader.root.raw_get("/Pages").idnum)
    first = inner.index(b"<<")
    grown = data + b"\n"
    objects = len(grown)
    grown += b"%d 0 obj\n%s\nendobj\n" % (
        size, body(inner, b"/Type /ObjStm /N 1 /First %d " % first),
    )  # fmt: skip
    start = len(grown)
    entries = (
        b"\x02" + size.to_bytes(4, "big") + b"\x00"
        + b"\x01" + objects.to_bytes(4, "big") + b"\x00"
        + b"\x01" + start.to_bytes(4, "big") + b"\x00"
    )  # fmt: skip
    index = b"/Type /XRef /Size %d /W [1 4 1] /Index [%d 1 %d 2] /Root %d 0 R /Prev %d " % (
        size + 2, root, size, root, reader.last_startxref,
    )  # fmt: skip
    grown += b"%d 0 obj\n%s\nendobj\n" % (size + 1, body(entries, index))
    return grown + b"startxref\n%d\n%%%%EOF" % start


@after
def it_ends_twice(data: bytes) -> bytes:
    return data.rstrip() + b"\n%%EOF\n%%EOF\n"


@after
def bytes_stand_behind_its_end(data: bytes) -> bytes:
    return data + b"\n% " + FORGED.encode() + b"\n"


@after
def another_end_names_the_same_state(data: bytes) -> bytes:
    start = PdfFileReader(io.BytesIO(data)).last_startxref
    return data + b"\n1 0 obj\n(%s)\nendobj\nstartxref\n%d\n%%%%EOF" % (FORGED.encode(), start)


@after
def another_end_names_the_first_state(data: bytes) -> bytes:
    start = PdfFileReader(io.BytesIO(data)).xrefs.get_startxref_for_revision(0)
    return data + b"\nstartxref\n%d\n%%%%EOF" % start


@after
def a_state_continues_the_first_one_and_passes_over_the_signature(data: bytes) -> bytes:
    start = PdfFileReader(io.BytesIO(data)).xrefs.get_startxref_for_revision(0)
    return by_hand(data, {contents_number(data): body(COVER)}, previous=start)


def other_file() -> bytes:
    writer = PdfFileWriter()
    pages = writer.root["/Pages"]
    page = dictionary(
        Type=pdf_name("/Page"),
        Parent=writer.root.raw_get("/Pages"),
        MediaBox=numbers(0, 0, 595, 842),
        Contents=writer.add_object(stream(COVER)),
        Resources=resources(),
    )
    pages[pdf_name("/Kids")] = array(writer.add_object(page))
    pages[pdf_name("/Count")] = generic.NumberObject(1)
    written = io.BytesIO()
    writer.write(written)
    return written.getvalue().rstrip()


@after
def another_file_stands_in_front(data: bytes) -> bytes:
    return other_file() + b"\n" + data


@after
def another_file_stands_behind(data: bytes) -> bytes:
    return data + b"\n" + other_file()


@after
def the_pages_contents_are_freed(data: bytes) -> bytes:
    return by_hand(data, {}, freed=(contents_number(data),))


@after
def a_cross_reference_leads_into_the_data(data: bytes) -> bytes:
    """An object that stands inside the signed bytes already, as part of something else."""
    return by_hand(data, {}, offsets={contents_number(data): data.index(b"stream")})


@after
def it_is_said_to_be_encrypted(data: bytes) -> bytes:
    reader = PdfFileReader(io.BytesIO(data))
    size = int(reader.trailer["/Size"])
    settings = b"<< /Filter /Standard /V 1 /R 2 /O <%s> /U <%s> /P -4 >>" % (b"00" * 32, b"00" * 32)
    return by_hand(data, {size: settings}, extra=b"/Encrypt %d 0 R " % size)


@after
def a_change_is_made_and_undone(data: bytes) -> bytes:
    number = contents_number(data)
    found = re.search(rb"[\r\n]%d 0 obj\s(.*?)\sendobj" % number, data, re.DOTALL)
    assert found is not None
    return overwrite(overwrite(data, number, body(COVER)), number, found[1])


@after
def validation_data_overwrite_a_page(data: bytes) -> bytes:
    """A certificate's place in the list of validation data is that of the page's contents."""
    reader = PdfFileReader(io.BytesIO(data))
    number, root = contents_number(data), reader.root_ref.idnum
    catalog = io.BytesIO()
    copy = generic.DictionaryObject(reader.root)
    copy[pdf_name("/DSS")] = dictionary(Certs=array(generic.IndirectObject(number, 0, reader)))
    copy.write_to_stream(catalog)
    return by_hand(data, {root: catalog.getvalue(), number: body(COVER)})


@after
def the_title_says_something_else(data: bytes) -> bytes:
    reader = PdfFileReader(io.BytesIO(data))
    number = int(reader.trailer.raw_get("/Info").idnum)
    return overwrite(
        data, number, b"<< /Title (%s) >>" % FORGED.encode(), b"/Info %d 0 R " % number
    )


@after
def the_metadata_have_another_title(data: bytes) -> bytes:
    reader = PdfFileReader(io.BytesIO(data))
    number = int(reader.root.raw_get("/Metadata").idnum)
    said = re.sub(
        rb"(<rdf:li xml:lang=\"x-default\">)[^<]*",
        rb"\g<1>" + FORGED.encode(),
        reader.root["/Metadata"].data,
    )
    return overwrite(data, number, body(said, b"/Type /Metadata /Subtype /XML "))


@after
def a_timestamp_over_the_document_draws_over_the_page(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        value = dictionary(
            Type=pdf_name("/DocTimeStamp"),
            Filter=pdf_name("/Adobe.PPKLite"),
            SubFilter=pdf_name("/ETSI.RFC3161"),
            ByteRange=array(*(generic.NumberObject(n) for n in (0, 10, 20, 30))),
            Contents=generic.ByteStringObject(b"\x30\x00"),
        )
        widget = annotate(
            writer, "/Widget", FT=pdf_name("/Sig"), T=text("Time"), V=writer.add_object(value)
        )
        add_field(writer, widget)

    return updated(data, change)


# Prepared before the signature, without anything after it.


@before
def data_are_replaced_before_the_signature(data: bytes) -> bytes:
    return data_are_replaced_by_a_new_stream(data)


@before
def data_are_overwritten_before_the_signature(data: bytes) -> bytes:
    return data_are_overwritten_in_place(data)


@before
def the_page_is_covered_before_the_signature(data: bytes) -> bytes:
    return AFTER["an annotation FreeText lies over the page"](data)


@before
def the_page_is_another_one_before_the_signature(data: bytes) -> bytes:
    return a_page_has_other_contents(data)


@before
def the_file_is_written_again_with_other_data(data: bytes) -> bytes:
    written = io.BytesIO()
    forged = forged_data(data)
    with pikepdf.open(io.BytesIO(data)) as pages:
        pages.attachments["sign-off.json"] = pikepdf.AttachedFileSpec(
            pages, forged, filename="sign-off.json", mime_type="application/json"
        )
        pages.Root.AF[0] = pages.attachments["sign-off.json"].obj
        pages.save(written)
    return written.getvalue().rstrip()


@before
def a_stranger_signs_first_and_covers_the_page(data: bytes) -> bytes:
    return a_stranger_signs_and_draws_over_the_page(data)


@before
def an_empty_place_for_a_signature_covers_the_page(data: bytes) -> bytes:
    return a_place_for_a_signature_is_left_empty_and_shows_something(data)


# Prepared before, and switched over behind the signature.


def field_for_a_decision(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        add_field(
            writer,
            annotate(writer, "/Widget", FT=pdf_name("/Tx"), T=text("Decision"), V=text("Rejected")),
        )

    return updated(data, change)


def field_of(writer: Any, name: str) -> Any:
    (field,) = [f for f in writer.root["/AcroForm"]["/Fields"] if f.get_object()["/T"] == name]
    field = field.get_object()
    writer.update_container(field)
    return field


def fill_in(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        field = field_of(writer, "Decision")
        field[pdf_name("/V")] = text(FORGED)
        field[pdf_name("/AP")] = dictionary(N=cover(writer))

    return updated(data, change)


def change_look(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        field_of(writer, "Decision")[pdf_name("/AP")] = dictionary(N=cover(writer))

    return updated(data, change)


def hide_annotation(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        page = page_of(writer)
        last = page["/Annots"][-2 if len(page["/Annots"]) > 1 else -1].get_object()
        last[pdf_name("/F")] = generic.NumberObject(2)
        writer.update_container(last)

    return updated(data, change)


def optional(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        group = writer.add_object(dictionary(Type=pdf_name("/OCG"), Name=text("Cover")))
        annotate(writer, "/Stamp", OC=group)
        writer.root[pdf_name("/OCProperties")] = dictionary(
            OCGs=array(group), D=dictionary(OFF=array(group))
        )
        writer.update_root()

    return updated(data, change)


def show_optional(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        properties = writer.root["/OCProperties"]
        properties[pdf_name("/D")] = dictionary(ON=properties["/OCGs"])
        writer.update_root()
        writer.update_container(properties)

    return updated(data, change)


def place(data: bytes) -> bytes:
    """Forged contents that no cross-reference leads to, in a state that is signed."""
    hidden = b"%d 0 obj\n%s\nendobj" % (contents_number(data), body(COVER))
    size = int(PdfFileReader(io.BytesIO(data)).trailer["/Size"])
    return by_hand(data, {size: body(b"\n" + hidden + b"\n")})


def point_at_it(data: bytes) -> bytes:
    number = contents_number(data)
    hidden = b"%d 0 obj\n%s\nendobj" % (number, body(COVER))
    return by_hand(data, {}, offsets={number: data.index(hidden)})


def place_for_two(data: bytes) -> bytes:
    def change(writer: Any) -> None:
        add_field(writer, annotate(writer, "/Widget", FT=pdf_name("/Sig"), T=text("Second")))

    return updated(data, change)


def fill_the_second(data: bytes) -> bytes:
    signer = signers.PdfSigner(
        signers.PdfSignatureMetadata(field_name="Second", md_algorithm="sha256"),
        signer=pades._Signer(fresh("auditor")),
    )
    return bytes(signer.sign_pdf(pades._Writer(io.BytesIO(data))).getvalue())


BOTH.update(
    {
        "a prepared field is filled in behind the signature": (field_for_a_decision, fill_in),
        "a prepared field gets another look behind the signature": (
            field_for_a_decision,
            change_look,
        ),
        "a prepared cover is taken away behind the signature": (
            AFTER["an annotation Stamp lies over the page"],
            hide_annotation,
        ),
        "prepared optional content is shown behind the signature": (optional, show_optional),
        "prepared contents are pointed at behind the signature": (place, point_at_it),
        "a prepared place for a signature is filled by a stranger": (
            place_for_two,
            fill_the_second,
        ),
    }
)
