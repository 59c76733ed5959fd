"""A gate at a site's door: what another framework's job sends out is noised and charged here.

gate.yaml (`settings`) says what is protected. A framework's proxy passes the shards' replies to the
`door`, which clips and noises them (`mechanism`) once the ledger is charged (`book`, `spending`).
`sharding` divides a table; `verification` says what the ledger holds.
"""

from __future__ import annotations

GROUPS = {
    "gate": "A gate at a site's door: jobs of other frameworks get noised updates, up to a budget.",
}
