"""Finds what a model file does not mean: calls of `fit` that run when it is imported, and misspelt functions."""

import ast
import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

OF_KERAS = {
    *("batch_size", "callbacks", "class_weight", "epochs", "initial_epoch", "sample_weight", "shuffle"),
    *("steps_per_epoch", "validation_data", "validation_split", "validation_steps", "verbose"),
}
"""Arguments that Keras's `fit` takes, and that of a scaler does not."""
CALLED = ("model", "train_data", "test_data", "train_files", "fit_arguments", "towers", "candidates")
"""The functions of a model file that the trainer calls."""
NEAR = 0.85
"""How alike a misspelt name is, by `difflib`."""
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def problems(file: Path) -> list[str]:
    """A sentence, without a full stop, on each of these in the file."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return []  # the import says it
    functions = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)}
    return _calls_of_fit(tree, functions) + _misspelt(tree, functions)


def _misspelt(tree: ast.Module, functions: Mapping[str, ast.FunctionDef]) -> list[str]:
    """The functions that nothing in the file calls, and whose name is nearly one that the trainer calls."""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {node.asname or node.name for node in ast.walk(tree) if isinstance(node, ast.alias)}
    absent, found = [each for each in CALLED if each not in functions and each not in used], []
    for name, function in functions.items():
        if name not in used and name not in CALLED and (near := difflib.get_close_matches(name, absent, 1, NEAR)):
            found.append(f"line {function.lineno}: nothing calls {name}() (did you mean {near[0]}?)")
    return found


def _calls_of_fit(tree: ast.Module, functions: Mapping[str, ast.FunctionDef]) -> list[str]:
    models = _models(tree, functions)
    found = []
    for call in _calls(tree.body):
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if _is_fit(call, models):
            found.append(f"line {call.lineno} calls {ast.unparse(call.func)}()")
        elif name in functions and any(_is_fit(each, models) for each in _calls(functions[name].body)):
            found.append(f"line {call.lineno} calls {name}(), which calls fit()")
    remedy = 'which trains by fit first, each time a task imports the file; put it under if __name__ == "__main__":'
    return [f"{each}, {remedy}" for each in found]


def _models(tree: ast.Module, functions: Collection[str]) -> set[str]:
    """The expressions that are Keras models: those with a call of compile(), and what a function of the file makes."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "compile":
            found.add(ast.unparse(node.func.value))
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _name(node.value.func) in functions:
            found.update(ast.unparse(target) for target in node.targets)
    return found


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _is_fit(call: ast.Call, models: Collection[str]) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "fit":
        return False
    return ast.unparse(call.func.value) in models or not OF_KERAS.isdisjoint(each.arg for each in call.keywords)


def _calls(body: Sequence[ast.stmt]) -> Iterator[ast.Call]:
    """The calls that statements make, but for those below `if __name__ == ...`."""
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop(0)
        if isinstance(node, DEFINITIONS):
            continue
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
            pending = [*node.orelse, *pending]
            continue
        if isinstance(node, ast.Call):
            yield node
        pending = [*ast.iter_child_nodes(node), *pending]
