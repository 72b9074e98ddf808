"""Check a loader's state against the schema that is part of the documentation."""

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
