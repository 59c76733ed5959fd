"""The tiers of the house in numbers, and the trusted core file by file.

python -m tests.tiers                          # files, lines, third-party packages of each tier
python -m tests.tiers docs/trusted-core.md     # writes them into the page
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
OURS = ("dpfedadamw", "audit", "reports", "specs")
CORE = (
    "dpfedadamw/privacy",
    "dpfedadamw/vectors",
    "dpfedadamw/storage",
    "dpfedadamw/errors.py",
    "dpfedadamw/profiling.py",
)
EXTENSIONS = (
    "dpfedadamw/extensions",
    "dpfedadamw/integrations",
    "reports/extensions",
    "audit/extensions",
)
TIERS = {
    "trusted core": CORE,
    "engine": ("dpfedadamw",),
    "auditor": ("audit",),
    "reports": ("reports",),
    "extensions": EXTENSIONS,
}
_STATEMENTS = (ast.stmt, ast.ExceptHandler, ast.match_case)
_FILES, _SIZES = "<!-- files of the trusted core -->", "<!-- sizes of the tiers -->"


def files_of(*places: str) -> list[Path]:
    """The Python files below some places, in order."""
    found: list[Path] = []
    for place in places:
        path = ROOT / place
        found += [path] if path.is_file() else sorted(path.rglob("*.py"))
    return found


def tier(name: str) -> list[Path]:
    """The files of a tier; what the core or an extension has is no one else's."""
    found = files_of(*TIERS[name])
    if name in ("trusted core", "extensions"):
        return found
    others = {*files_of(*CORE), *files_of(*EXTENSIONS)}
    return [path for path in found if path not in others]


def lines(paths: list[Path]) -> int:
    """All lines, with docstrings, comments and empty ones."""
    return sum(len(path.read_text("utf-8").splitlines()) for path in paths)


def third_parties(paths: list[Path]) -> list[str]:
    """The packages of others that are imported anywhere in some files."""
    found = {name for path in paths for name in _imported(path)}
    return sorted(found - {*sys.stdlib_module_names, *OURS})


@cache
def _imported(path: Path) -> frozenset[str]:
    """The packages that a file imports anywhere."""
    found = set()
    left: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while left:
        node = left.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
        # No import is in an expression.
        left += [one for one in ast.iter_child_nodes(node) if isinstance(one, _STATEMENTS)]
    return frozenset(found)


def sizes() -> str:
    """Files, lines and third-party packages of every tier, as a table."""
    rows = ["| tier | files | lines | packages of others |", "|---|---|---|---|"]
    for name in TIERS:
        paths = tier(name)
        others = ", ".join(third_parties(paths))
        rows.append(f"| {name} | {len(paths)} | {lines(paths):,} | {others} |")
    return "\n".join(rows)


def invariants() -> str:
    """What each file of the trusted core guarantees, by the first line of its docstring."""
    rows = ["| file | lines | what it guarantees |", "|---|---|---|"]
    for path in tier("trusted core"):
        if path.name == "__init__.py":
            continue
        said = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").splitlines()[0]
        place = path.relative_to(ROOT / "dpfedadamw").as_posix()
        rows.append(f"| `{place}` | {lines([path])} | {said} |")
    return "\n".join(rows)


def written_into(page: str) -> str:
    """A page with both tables between their marks."""
    for mark, table in ((_FILES, invariants()), (_SIZES, sizes())):
        before, _, rest = page.partition(mark)
        _, _, after = rest.partition(mark)
        page = f"{before}{mark}\n\n{table}\n\n{mark}{after}"
    return page


if __name__ == "__main__":
    if len(sys.argv) > 1:
        target = Path(sys.argv[1])
        target.write_text(written_into(target.read_text("utf-8")), "utf-8")
    else:
        print(sizes())
