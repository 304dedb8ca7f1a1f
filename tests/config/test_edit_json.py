"""JSON edits change one member and keep every other character, whatever the layout."""

from __future__ import annotations

import pytest

from mcpd.config.in_place_edits import edit_json


@pytest.mark.parametrize(
    ("text", "path", "listed", "entry", "after"),
    [
        ('', ('s',), False, {'c': 'x'}, '{\n  "s": {\n    "n": {\n      "c": "x"\n    }\n  }\n}\n'),
        ('// c', ('s',), False, {'c': 'x'},
         '// c\n{\n  "s": {\n    "n": {\n      "c": "x"\n    }\n  }\n}\n'),
        ('{}\r\n', ('s',), False, {'c': 'x'},
         '{\r\n  "s": {\r\n    "n": {\r\n      "c": "x"\r\n    }\r\n  }\r\n}\r\n'),
        ('{"s":{}}', ('s',), False, {'c': 'x'}, '{"s":{\n  "n": {\n    "c": "x"\n  }\n}}'),
        ('{"s":[]}', ('s',), True, {'c': 'x'}, '{"s":[\n  {\n    "name": "n",\n    "c": "x"\n  }\n]}'),
        ('{"s":{"a":1}}', ('s',), False, 1, '{"s":{"a":1, "n": 1}}'),
        ('{"s":{"a":1,}}', ('s',), False, 1, '{"s":{"a":1, "n": 1,}}'),
        ('{"s":{\n  "a":1\n}}', ('s',), False, {'c': 'x'},
         '{"s":{\n  "a":1,\n  "n": {\n    "c": "x"\n  }\n}}'),
        ('{"s":{\n\t"a":1, // x\n}}', ('s',), False, {'c': 'x'},
         '{"s":{\n\t"a":1, // x\n\t"n": {\n\t\t"c": "x"\n\t},\n}}'),
        ('{"s":{\n  "a":1 /* x */ , "b":2\n}}', ('s',), False, 1,
         '{"s":{\n  "a":1 /* x */ , "b":2, "n": 1\n}}'),
        ('{\n "s":{ // x\n }\n}', ('s',), False, 1, '{\n "s":{ // x\n  "n": 1\n }\n}'),
        ('{"a":{"b":{}}}', ('a', 'b', 'c', 'd'), False, 1,
         '{"a":{"b":{\n  "c": {\n    "d": {\n      "n": 1\n    }\n  }\n}}}'),
        ('{}', ('a', 'b'), True, {'c': 'x'},
         '{\n  "a": {\n    "b": [\n      {\n        "name": "n",\n        "c": "x"\n      }\n    ]\n  }\n}'),
        ('{"s":[1]}', ('s',), True, 'x', '{"s":[1, "x"]}'),
        ('{"s":{}}', ('s',), False, {'é': [{'a': 1}, 'é']},
         '{"s":{\n  "n": {\n    "é": [\n      {\n        "a": 1\n      },\n      "é"\n    ]\n  }\n}}'),
        ('{"s":{}}', ('s',), False, {'e': {}, 'm': [1, 2]},
         '{"s":{\n  "n": {\n    "e": {},\n    "m": [1, 2]\n  }\n}}'),
        ('{"s":{\n  "a":1 // x\n  , "z":2\n}}', ('s',), False, 1,
         '{"s":{\n  "a":1 // x\n  , "z":2, "n": 1\n}}'),
    ],
)  # fmt: skip
def test_entry_is_added(text: str, path: tuple[str, ...], listed: bool, entry: object, after: str) -> None:
    assert edit_json.add(text, path, listed, "n", entry) == after


@pytest.mark.parametrize(
    ("text", "path", "listed", "name", "after"),
    [
        ('{"a":1}', (), False, 'a', '{}'),
        ('{ "a":1 }', (), False, 'a', '{}'),
        ('{"a":1,"b":2,"c":3}', (), False, 'a', '{"b":2,"c":3}'),
        ('{"a":1,"b":2,"c":3}', (), False, 'b', '{"a":1,"c":3}'),
        ('{"a":1,"b":2,"c":3}', (), False, 'c', '{"a":1,"b":2}'),
        ('{"a":1,"b":2,}', (), False, 'b', '{"a":1,}'),
        ('{\n  "a": 1,\n  "b": 2\n}', (), False, 'a', '{\n  "b": 2\n}'),
        ('{\n  "a": 1,\n  "b": 2\n}', (), False, 'b', '{\n  "a": 1\n}'),
        ('{\r\n  "a": 1,\r\n  "b": 2,\r\n}', (), False, 'b', '{\r\n  "a": 1,\r\n}'),
        ('{\n  "a": 1\n}', (), False, 'a', '{}'),
        ('{\n  "a": 1, // x\n  "b": 2 // y\n}', (), False, 'a', '{\n  "b": 2 // y\n}'),
        ('{\n  "a": 1, // x\n  "b": 2 // y\n}', (), False, 'b', '{\n  "a": 1 // x\n}'),
        ('{"a":1, /* k */ "b":2}', (), False, 'a', '{ /* k */ "b":2}'),
        ('{"a":1, /* k */ "b":2}', (), False, 'b', '{"a":1 /* k */ }'),
        ('{ /* k */ "a":1 }', (), False, 'a', '{ /* k */  }'),
        ('{"a":1 /* k */ }', (), False, 'a', '{ /* k */ }'),
        ('{\n  "a": 1, "b": 2\n}', (), False, 'b', '{\n  "a": 1\n}'),
        ('{\n"a": 1,\n"b": 2\n}', (), False, 'b', '{\n"a": 1\n}'),
        ('{"a":1,\n  "b":2 }', (), False, 'b', '{"a":1 }'),
        ('{"l":["x","y"]}', ('l',), True, 'y', '{"l":["x"]}'),
        ('{"l":[{"name":"x"},{"name":"y"}]}', ('l',), True, 'x', '{"l":[{"name":"y"}]}'),
        ('{"a":1,\n"b":2}', (), False, 'a', '{"b":2}'),
    ],
)  # fmt: skip
def test_entry_is_removed(text: str, path: tuple[str, ...], listed: bool, name: str, after: str) -> None:
    assert edit_json.remove(text, path, listed, name) == after


@pytest.mark.parametrize(
    ("text", "path", "value", "after"),
    [
        ('', ('a', 'b'), True, '{\n  "a": {\n    "b": true\n  }\n}\n'),
        ('{"a":{"b":1}}', ('a', 'b'), 2, '{"a":{"b":2}}'),
        ('{"a":{"b":1}}', ('a', 'c'), 2, '{"a":{"b":1, "c": 2}}'),
        ('{"a":{"b":1}}', ('a', 'b'), {'x': 1}, '{"a":{"b":{\n  "x": 1\n}}}'),
        ('{\r\n  "a": 1\r\n}', ('a',), {'x': 1}, '{\r\n  "a": {\r\n    "x": 1\r\n  }\r\n}'),
        ('{"a":[1]}', ('a',), [1, 2], '{"a":[1, 2]}'),
        ('{"a":[]}', ('a',), ['x'], '{"a":["x"]}'),
        ('{"a":["x"]}', ('a',), [], '{"a":[]}'),
        ('{"a":["x"]}', ('a',), ['x', 5], '{"a":["x", 5]}'),
        ('{"a":[ "x" , "y" ]}', ('a',), ['x', 'y', 'z'], '{"a":[ "x" , "y", "z" ]}'),
        ('{"a":[ "x" , "y" ]}', ('a',), ['y'], '{"a":[ "y" ]}'),
        ('{"a":[ "x" , "y" ]}', ('a',), ['z'], '{"a":["z"]}'),
        ('{"a":[ "x" , "y" ]}', ('a',), 'x', '{"a":"x"}'),
        ('{"a":"x"}', ('a',), ['x'], '{"a":["x"]}'),
        ('{"a":[ "x" , "y" ]}', ('a',), ['y', 'z'], '{"a":["y", "z"]}'),
    ],
)  # fmt: skip
def test_value_is_set(text: str, path: tuple[str, ...], value: object, after: str) -> None:
    assert edit_json.change(text, path, value) == after
