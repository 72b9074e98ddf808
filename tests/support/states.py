"""Check a loader's state against the schema that is part of the documentation, and make states that break it."""

import json
import pathlib

_SCHEMA = json.loads((pathlib.Path(__file__).parents[2] / "docs" / "state.schema.json").read_text())
_TYPES = {
    "object": dict, "array": (list, tuple), "string": str, "boolean": bool, "integer": int, "null": type(None),
}  # fmt: skip


def check_state(state):
    """Return a state that has the schema's form; fail if it has another one."""
    _check(state, _SCHEMA, "state")
    return state


def _check(value, schema, where):
    if "$ref" in schema:
        schema = _SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    if "enum" in schema:
        assert value in schema["enum"], (where, value)
    kinds = schema.get("type")
    if kinds is not None:
        kinds = [kinds] if isinstance(kinds, str) else kinds
        allowed = [kind for kind in kinds if isinstance(value, _TYPES[kind])]
        assert allowed and (isinstance(value, bool) <= ("boolean" in kinds)), (where, value)
    if isinstance(value, dict):
        known = schema.get("properties", {})
        assert set(schema.get("required", ())) <= value.keys(), (where, value.keys())
        if schema.get("additionalProperties") is False:
            assert value.keys() <= known.keys(), (where, value.keys() - known.keys())
        for name in value.keys() & known.keys():
            _check(value[name], known[name], f"{where}[{name!r}]")
    if isinstance(value, (list, tuple)) and "items" in schema:
        for i, item in enumerate(value):
            _check(item, schema["items"], f"{where}[{i}]")
    if isinstance(value, int) and "minimum" in schema:
        assert value >= schema["minimum"], (where, value)


_WRONG = {
    "object": (3, "x", [1]), "array": (3, "x", {"x": 1}), "string": (3, ["x"]), "boolean": ("x", 3),
    "integer": ("x", 1.5, True, 1 << 70, [1]),
}  # fmt: skip
_POSITION = {"batches": 1, "states": None}
_RANKS = {"by": "BatchSampler", "rank": 0, "world_size": 1, "batch_size": 1}


def wrong_states(state):
    """Yield a state with one wrong field for each rule of the schema; `state` is a right one."""
    for name, rule in _SCHEMA["properties"].items():
        for value in _wrong(rule):
            yield {**state, name: value}


def _wrong(rule):
    """Yield the values that break a rule of the schema."""
    if "$ref" in rule:
        name = rule["$ref"].rpartition("/")[2]
        rule, right = _SCHEMA["$defs"][name], {"ranks": _RANKS, "worker": _POSITION}[name]
        yield {}
        for key in rule["properties"].keys() & {"rank", "world_size", "batches", "states", "since", "again"}:
            for value in _wrong(rule["properties"][key]):
                yield {**right, key: value}
    if "enum" in rule:
        yield from ("x", 99, None)
    kinds = rule.get("type", [])
    for kind in {kinds} if isinstance(kinds, str) else set(kinds) - {"null"}:
        if kind == "object" and "array" in kinds:
            continue
        yield from _WRONG[kind]
    if "minimum" in rule:
        yield rule["minimum"] - 1
    if "items" in rule:
        for value in _wrong(rule["items"]):
            yield [value]
