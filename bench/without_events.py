"""A copy of the source in which nothing is told to anybody: what the stream of events costs is the difference to it.

Nothing else differs: every statement that notes something for a listener is taken out, and the client is made without a stream.
"""

from __future__ import annotations

import ast
import shutil
from pathlib import Path
from typing import Any, Final

NOTED: Final = {"given_up_for", "let_go", "told", "loss_told", "stream", "hear_of_loss"}
"""What `core/keeper.py` and `core/live.py` have for the listeners alone."""
FILES: Final = ("core/keeper.py", "core/live.py", "sync.py")


class _TakeOut(ast.NodeTransformer):
    """Takes out each statement that is about a listener, and counts them."""

    def __init__(self) -> None:
        self.taken = 0

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, (ast.If, ast.Assign, ast.AnnAssign, ast.Expr, ast.Return)) and _is_about_listeners(node):
            self.taken += 1
            return None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "stream_for":
            self.taken += 1
            return ast.Constant(None)
        node = self.generic_visit(node)
        if isinstance(node, (ast.FunctionDef, ast.If)) and not node.body:
            node.body = [ast.Pass()]
        return node


def _is_about_listeners(statement: ast.stmt) -> bool:
    """Whether its head says so: what is tested, what is assigned, what is called."""
    if isinstance(statement, ast.If):
        head: list[ast.AST] = [statement.test]
    elif isinstance(statement, ast.Assign):
        head = list(statement.targets)
    elif isinstance(statement, ast.AnnAssign):
        head = [statement.target]
    elif isinstance(statement, (ast.Expr, ast.Return)) and isinstance(statement.value, ast.Call):
        head = [statement.value.func]
    else:
        head = []
    found = [part for one in head for part in ast.walk(one)]
    return any(
        (isinstance(part, ast.Attribute) and part.attr in NOTED) or (isinstance(part, ast.Name) and part.id in NOTED)
        for part in found
    )


def write_without_events(source: Path, folder: Path) -> Path:
    """The copy, in that folder; as if it were the source tree itself."""
    shutil.copytree(source / "lockline", folder / "lockline", ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        file = folder / "lockline" / name
        take_out = _TakeOut()
        tree = ast.parse(file.read_text())
        take_out.visit(tree)
        if not take_out.taken:
            raise SystemExit(f"nothing in {name} is about listeners any more: this script has to follow the code")
        file.write_text(ast.unparse(ast.fix_missing_locations(tree)))
    return folder
