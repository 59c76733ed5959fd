"""What a web page over a folder of runs says, as data: public values, and nothing else.

`reading` looks at each run as its public report would, `spending` adds up what runs on the same
data may have revealed, and here both become one `SiteData`, which `page` shows and `folder` writes.
"""

from __future__ import annotations

from typing import Final, Literal

from audit.protection import Against
from reports.content.findings import VerdictValue
from reports.content.parts import Count, Loss, Part, Share

FORMAT: Final = 1
SignatureState = Literal["hold", "signer unknown", "broken", "unsigned"]
Auditor = Literal["nobody", "trainer", "another key"]
LevelValue = Literal[1, 2, 3]


class SiteRun(Part):
    """One finished run.

    Attributes:
        run: The run's identifier.
        name: The experiment's name, from the spec.
        algorithm: The algorithm's name.
        created: When it began, ISO 8601 UTC.
        data: Letter of the data set; runs on the same records have the same.
        dataset: Name of the data set.
        unit: What is protected: record, client, or none.
        adjacency: Which data sets are neighbours; empty without privacy.
        epsilon: ε against a third party; null without privacy, or where it is not finite.
        delta: δ of it.
        epsilon_server: ε against the server, a client in every round; null where none holds.
        accuracy: Test accuracy of the final model.
        audit: The public report's verdict on it.
        level: How much stands behind a PASS, from 1 to 3, as `verify` computes it from findings and
            signatures; null without a PASS under signatures that hold. Level 4 is its reader's to
            find out.
        recomputed: How many participations were computed again from the data and agree. Null
            where none was, where all were, or where the number would say how many took part.
        auditor: Whose key signed the findings, as its signed report says.
        signatures: Whether its signatures held when the page was written, and whether by keys that
            were known then.
        reservations: What limits the claim, a phrase each.
        files: Its public files in the site, relative to the site's folder; empty where none may be
            copied.
        unprotected_against: Against whom ε is too large to protect anybody; null where it is not.
    """

    run: str
    name: str
    algorithm: str
    created: str
    data: str
    dataset: str
    unit: str
    adjacency: str
    epsilon: Loss | None
    delta: Share | None
    epsilon_server: Loss | None
    accuracy: Share | None
    audit: VerdictValue
    level: LevelValue | None
    recomputed: Count | None
    auditor: Auditor
    signatures: SignatureState
    reservations: tuple[str, ...]
    files: tuple[str, ...]
    unprotected_against: Against | None = None


class Spent(Part):
    """What runs on the same data may have revealed together, by basic composition.

    Attributes:
        data: Letter of the data set.
        dataset: Its name in the runs.
        unit: What is protected.
        adjacency: Which data sets are neighbours.
        runs: Finished runs that are added up.
        epsilon: Sum of their ε against a third party; null where one has no finite ε.
        epsilon_server: Sum of their ε against the server; null where one has none.
        delta: Sum of their δ.
        without_pass: Runs among them that no audit passed: their ε is a claim, no more.
        without_privacy: Runs on the same data without privacy, which nothing bounds.
        unfinished: Runs on the same data that did not finish, which are not added up.
        canaries: Runs on the same data with planted canaries, which are not added up either.
    """

    data: str
    dataset: str
    unit: str
    adjacency: str
    runs: Count
    epsilon: Loss | None
    epsilon_server: Loss | None
    delta: Loss | None
    without_pass: Count
    without_privacy: Count
    unfinished: Count
    canaries: Count = 0


class SiteData(Part):
    """Runs of one folder; nothing here shows who took part, or how often.

    Attributes:
        format: Version of this format.
        title: The page's title.
        runs: The runs, the newest first.
        spent: What was spent of each data set.
    """

    format: Literal[1]
    title: str
    runs: tuple[SiteRun, ...]
    spent: tuple[Spent, ...]
