"""The kind of import contract that import-linter has not: the standard library, and nothing else."""

import sys
from typing import Any

import grimp
from importlinter import Contract, ContractCheck, fields, output
from importlinter.application import contract_utils


class StandardLibrary(Contract):
    """Modules import the standard library and each other, and nothing else.

    `source_modules` are packages; a contract of type `forbidden` would have to name everything that there is.
    """

    type_name = "standard_library"

    source_modules = fields.ListField(subfield=fields.ModuleField())
    ignore_imports = fields.SetField(subfield=fields.ImportExpressionField(), required=False)

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002, FBT001 - as it is called
        """Return the imports that are neither of the standard library nor of the same package."""
        sources: Any = self.source_modules
        expressions: Any = self.ignore_imports
        removed = contract_utils.remove_ignored_imports_and_report(
            graph=graph, ignore_imports=expressions, unmatched_alerting=contract_utils.AlertLevel.ERROR
        )
        found = []
        for source in sources:
            inside = {source.name, *graph.find_descendants(source.name)}
            for module in sorted(inside):
                imported = graph.find_modules_directly_imported_by(module) - inside
                found += [(module, name) for name in sorted(imported) if not _is_standard(name)]
        return ContractCheck(
            kept=not found,
            warnings=list(removed.warnings),
            ignored_import_count=removed.ignored_import_count,
            metadata={"found": found},
        )

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print these imports."""
        for module, name in check.metadata["found"]:
            output.print_error(f"{module} imports {name}, which is not of the standard library.")


def _is_standard(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names
