"""House rules: which module may import which, what is public, and that every method has its page."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import paceline
from paceline import methods

PACKAGE = Path(paceline.__file__).parent
DOCS = PACKAGE.parent / "docs"
FILES = sorted(PACKAGE.rglob("*.py"))
PUBLIC = [
    "Completion",
    "Draft",
    "Drafter",
    "HFTarget",
    "IncompatibleDraft",
    "IncompatibleRule",
    "InvalidRequest",
    "PacelineError",
    "PromptTooLong",
    "Round",
    "Rule",
    "SamplingParams",
    "Sequence",
    "Siblings",
    "Tree",
    "UnsupportedModel",
    "Verdict",
    "generate",
    "load",
    "next_turn",
    "release",
    "request",
    "rounds",
    "stream",
]


@dataclass(frozen=True)
class Import:
    """One imported module, as seen in the source of another."""

    by: str
    line: int
    module: str
    in_function: bool

    def __str__(self) -> str:
        return f"{self.by}:{self.line} imports {self.module}{' in a function' if self.in_function else ''}"


def module_name(file: Path) -> str:
    """`paceline.targets.kv` of `paceline/targets/kv.py`."""
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(f): f for f in FILES}


def read_imports(source: str, name: str, is_package: bool) -> list[Import]:
    """All imports of a module, wherever they stand; a name of a package that is itself a module counts as that module."""
    found: list[Import] = []

    def visit(node: ast.AST, in_function: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(name, node.lineno, alias.name, in_function) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = name.split(".")
                package = parts[: len(parts) - node.level + is_package]
                base = ".".join([*package, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.append(Import(name, node.lineno, inner if inner in MODULES else base, in_function))
        for child in ast.iter_child_nodes(node):
            visit(child, in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))

    visit(ast.parse(source), False)
    return found


IMPORTS = [i for name, file in MODULES.items() for i in read_imports(file.read_text(), name, file.name == "__init__.py")]
# what rules, and what drafters, have in common
_OF_RULES = "walk multi ramp transport ledger memory memory_file spelling thresholds control csd_config easd_config"
_OF_DRAFTERS = "account claims draft_growth earlier grow part pool requests sampled shapes union"
SHARED = {f"paceline.rules.{name}" for name in _OF_RULES.split()} | {f"paceline.drafters.{name}" for name in _OF_DRAFTERS.split()}
CONCRETE = {m for m in MODULES if m.startswith(("paceline.drafters.", "paceline.rules."))} - SHARED
MODEL_CODE = ("paceline.targets.hf", "paceline.targets.kv")


def inside(module: str, *folders: str) -> bool:
    """Whether the module is one of these or lies in one of them."""
    return any(module == f or module.startswith(f + ".") for f in folders)


def listed(wrong: list[Import]) -> str:
    return f"{len(wrong)} too many: " + "; ".join(map(str, wrong))


# --- the reader of imports itself


@pytest.mark.parametrize(
    ("source", "module", "in_function"),
    [
        ("import torch.nn", "torch.nn", False),
        ("from ..tree import Tree", "paceline.tree", False),
        ("from .. import tree", "paceline.tree", False),
        ("from . import kv", "paceline.targets.kv", False),
        ("from .kv import SlotCache", "paceline.targets.kv", False),
        ("from paceline.targets import kv", "paceline.targets.kv", False),
        ("if TYPE_CHECKING:\n    from ..tree import Tree", "paceline.tree", False),
        ("def f():\n    with x:\n        from transformers import A", "transformers", True),
    ],
)
def test_the_reader_sees_every_kind_of_import(source, module, in_function):
    (found,) = read_imports(source, "paceline.targets.hf", False)
    assert (found.module, found.in_function) == (module, in_function), str(found)


def test_the_reader_resolves_dots_of_a_package():
    (found,) = read_imports("from .tree import Tree", "paceline", True)
    assert found.module == "paceline.tree", str(found)


def test_the_reader_reads_the_whole_package():
    assert {i.by for i in IMPORTS} >= {"paceline.engine", "paceline.targets.hf", "paceline.cli.generate", "paceline.table"}


# --- arrows


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("paceline.errors", []),
        ("paceline.tree", []),
        ("paceline.text", []),
        ("paceline.sampling", ["paceline.errors"]),
        ("paceline.draft", ["paceline.tree", "paceline.sequence"]),
        ("paceline.sequence", ["paceline.errors", "paceline.sampling"]),
    ],
)
def test_the_foundations_import_no_more_of_paceline_than_this(module, allowed):
    wrong = [i for i in IMPORTS if i.by == module and inside(i.module, "paceline") and i.module not in allowed]
    assert not wrong, listed(wrong)


def test_drafters_import_no_rules():
    wrong = [i for i in IMPORTS if inside(i.by, "paceline.drafters") and inside(i.module, "paceline.rules")]
    assert not wrong, listed(wrong)


def test_drafters_import_no_model_code():
    wrong = [i for i in IMPORTS if inside(i.by, "paceline.drafters") and inside(i.module, *MODEL_CODE)]
    assert not wrong, listed(wrong)


def test_drafters_do_not_import_each_other():
    others = [i for i in IMPORTS if inside(i.by, "paceline.drafters") and inside(i.module, "paceline.drafters")]
    wrong = [i for i in others if i.module not in (i.by, "paceline.drafters.none", *SHARED)]
    assert not wrong, listed(wrong)


def test_rules_import_no_drafters_and_no_targets():
    wrong = [i for i in IMPORTS if inside(i.by, "paceline.rules") and inside(i.module, "paceline.drafters", "paceline.targets")]
    assert not wrong, listed(wrong)


def test_only_targets_import_transformers_at_the_top():
    wrong = [i for i in IMPORTS if inside(i.module, "transformers") and not i.in_function and not inside(i.by, "paceline.targets")]
    assert not wrong, listed(wrong)


def test_only_targets_and_peers_and_the_quieting_console_import_transformers_at_all():
    allowed = ("paceline.targets", "paceline.bench.peers", "paceline.cli.console")
    wrong = [i for i in IMPORTS if inside(i.module, "transformers") and not inside(i.by, *allowed)]
    assert not wrong, listed(wrong)


def test_the_engine_knows_protocols_only():
    known = {i.module for i in IMPORTS if i.by == "paceline.engine" and inside(i.module, "paceline")}
    wrong = {m for m in known if m in CONCRETE or (inside(m, "paceline.targets") and m != "paceline.targets.base")}
    assert not wrong, f"engine imports {sorted(wrong)}"


def test_nothing_below_imports_the_loop():
    below = (
        "paceline.drafters",
        "paceline.rules",
        "paceline.targets",
        "paceline.sampling",
        "paceline.sequence",
        "paceline.methods",
        "paceline.table",
    )
    above = ("paceline.engine", "paceline.api", "paceline.stats", "paceline.bench", "paceline.cli")
    wrong = [i for i in IMPORTS if inside(i.by, *below) and inside(i.module, *above)]
    assert not wrong, listed(wrong)


def test_concrete_drafters_and_rules_are_imported_by_the_table_only():
    wrong = [i for i in IMPORTS if i.module in CONCRETE and i.by != "paceline.table" and i.module != "paceline.drafters.none"]
    assert not wrong, listed(wrong)


def test_the_table_imports_concrete_classes_inside_functions():
    wrong = [i for i in IMPORTS if i.by == "paceline.table" and i.module in CONCRETE and not i.in_function]
    assert not wrong, listed(wrong)


@pytest.mark.parametrize("module", sorted(CONCRETE))
def test_every_drafter_and_rule_is_in_the_table(module):
    assert [i for i in IMPORTS if i.by == "paceline.table" and i.module == module], f"{module} is imported nowhere in table.py"


# --- public names


def test_the_public_names_are_these():
    assert sorted(paceline.__all__) == PUBLIC, f"not in both lists: {sorted(set(paceline.__all__) ^ set(PUBLIC))}"


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_can_be_imported(name):
    found = getattr(paceline, name)
    assert found.__name__ == name, f"paceline.{name} is {found!r}"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Proposer'"):
        _ = paceline.Proposer


def test_the_front_door_is_short():
    lines = len((PACKAGE / "__init__.py").read_text().splitlines())
    assert lines < 40, f"paceline/__init__.py has {lines} lines"


@pytest.mark.parametrize("statement", ["import paceline", "import paceline.methods", "import paceline.cli"])
def test_importing_does_not_import_what_is_heavy(statement):
    program = f"import sys; {statement}; print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "[]", f"{statement} imports {done.stdout.strip()} {done.stderr[-300:]}"


# --- pages and sizes


TRAININGS = {"rcsd"}  # methods that make a head for a drafter of the table
METHOD_PAGES = {name: entry.page or name for name, entry in {**methods.DRAFTERS, **methods.RULES}.items()}


@pytest.mark.parametrize("name", METHOD_PAGES)
def test_every_drafter_and_rule_has_a_page_that_names_it(name):
    page = DOCS / "methods" / f"{METHOD_PAGES[name]}.md"
    assert page.is_file(), f"{page.relative_to(PACKAGE.parent)} is missing"
    assert page.read_text().startswith(f"# {page.stem}\n"), f"its title is {page.read_text().splitlines()[:1]}"
    assert f"`{name}`" in page.read_text() or name == page.stem, f"docs/methods/{page.name} does not name {name}"


@pytest.mark.parametrize("page", sorted((DOCS / "methods").glob("*.md")), ids=lambda p: p.stem)
def test_every_page_has_its_drafter_or_rule(page):
    assert page.stem in {*METHOD_PAGES.values(), *TRAININGS}, f"docs/methods/{page.name} describes nothing in the table"


@pytest.mark.parametrize("file", [*FILES, *sorted(Path(__file__).parent.rglob("*.py"))], ids=lambda f: str(f.relative_to(PACKAGE.parent)))
def test_no_file_is_longer_than_300_lines(file):
    lines = len(file.read_text().splitlines())
    assert lines <= 300, f"{file.name} has {lines} lines"
