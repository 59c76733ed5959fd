"""Names that programs import recorders and trackers by; the code is in `dpfedadamw.extensions`.

These names stay. Where the folder of an extension was deleted, importing its name here fails.
"""
