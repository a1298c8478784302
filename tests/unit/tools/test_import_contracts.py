"""The kind of import contract that is this project's own."""

import grimp
import pytest

from import_contracts import StandardLibrary


@pytest.mark.parametrize(
    ("imported", "ignored", "found"),
    [
        ("json", [], []),
        ("program.other", [], []),
        ("yaml", [], [("program.main", "yaml")]),
        ("yaml", ["program.main -> yaml"], []),
        ("programs", [], [("program.main", "programs")]),
    ],
)
def test_modules_of_a_package_import_the_standard_library_and_each_other(
    imported: str, ignored: list[str], found: list[tuple[str, str]]
) -> None:
    graph = grimp.ImportGraph()
    for name in ("program", "program.main", "program.other"):
        graph.add_module(name)
    if not imported.startswith("program."):
        graph.add_module(imported, is_squashed=True)
    graph.add_import(importer="program.main", imported=imported, line_number=1, line_contents="")
    options = {"source_modules": ["program"], "ignore_imports": ignored}
    contract = StandardLibrary("name", {"root_packages": ["program"]}, options)
    check = contract.check(graph, verbose=False)
    assert (check.kept, check.metadata["found"]) == (not found, found)
