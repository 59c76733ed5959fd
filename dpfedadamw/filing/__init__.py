"""What follows training: the independent audit, the report, and the signatures.

The command line and `dpfedadamw.api` both end a run by it. Apart from them, it is the only part of
the engine that knows the auditor and the reports.
"""
