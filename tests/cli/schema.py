"""docs/schema.json, held against what the tool prints."""
import json
import os

import jsonschema

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "schema.json")


def strict(schema):
    """The schema without fields that it does not name: users must bear new ones, a test must not."""
    if isinstance(schema, dict):
        schema = {key: strict(value) for key, value in schema.items()}
        if "properties" in schema and "additionalProperties" not in schema:
            schema["additionalProperties"] = False
    elif isinstance(schema, list):
        schema = [strict(value) for value in schema]
    return schema


def load():
    with open(PATH, encoding="utf-8") as file:
        return strict(json.load(file))


SCHEMA = load()
VALIDATORS = {}


def violations(document):
    """What is wrong with a document, by the definition that its "schema" names; [] for nothing."""
    name = document.get("schema", "").removeprefix("reprobe.").removesuffix("/1")
    if {"$ref": f"#/$defs/{name}"} not in SCHEMA["oneOf"]:
        return [f"no schema {document.get('schema')!r}"]
    if name not in VALIDATORS:
        kind = jsonschema.validators.validator_for(SCHEMA)
        kind.check_schema(SCHEMA)
        VALIDATORS[name] = kind({"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]})
    return [f"{'/'.join(map(str, error.absolute_path))}: {error.message[:300]}"
            for error in VALIDATORS[name].iter_errors(document)]
