#!/usr/bin/env python3
"""Makes strict JSON schemas for kubeconform: of Kubernetes' OpenAPI v3 files (.json) and of custom
resource definitions (.yaml, which needs PyYAML). A field that the schema does not name is an error.

Usage: schemas.py OUT_FOLDER FILE...    writes KIND-GROUP-VERSION.json, all in lower case
"""
import json
import pathlib
import re
import sys

REF = "#/components/schemas/"
# The OpenAPI files name these, and describe them by prose.
SCALARS = {"IntOrString": {"type": ["string", "integer"]}, "Quantity": {"type": ["string", "number"]}}


def strict(node):
    """The node as JSON schema draft 7: references local, objects closed, null where a type is."""
    if isinstance(node, list):
        return [strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    if node.get("x-kubernetes-int-or-string") or node.get("format") == "int-or-string":
        return SCALARS["IntOrString"]
    made = {key: strict(value) for key, value in node.items()
            if key not in ("default", "description")}
    if len(made.get("allOf", [])) == 1 and "$ref" in made["allOf"][0]:
        return made["allOf"][0]
    if "$ref" in made:
        return {"$ref": made["$ref"].replace(REF, "#/definitions/")}
    is_open = made.get("x-kubernetes-preserve-unknown-fields")
    if made.get("type") == "object" and isinstance(made.get("properties"), dict) and not is_open:
        made.setdefault("additionalProperties", False)
    elif isinstance(made.get("type"), str) and "properties" not in made:
        made["type"] = [made["type"], "null"]
    return made


def write(folder, kind, group, version, schema):
    names = [kind.lower(), *([group.split(".")[0]] if group else []), version]
    schema["properties"] = {**schema.get("properties", {}), "apiVersion": {"type": "string"},
                            "kind": {"const": kind}, "metadata": schema.get(
                                "properties", {}).get("metadata", {"type": "object"})}
    (folder / ("-".join(names) + ".json")).write_text(json.dumps(schema))


def reachable(schema, definitions):
    found, todo = {}, [json.dumps(schema)]
    while todo:
        for name in re.findall(r'"#/definitions/([^"]+)"', todo.pop()):
            if name not in found:
                found[name] = definitions[name]
                todo.append(json.dumps(definitions[name]))
    return found


def take_openapi(path, folder):
    schemas = json.loads(path.read_text())["components"].get("schemas", {})
    definitions = {name: SCALARS.get(name.rpartition(".")[2]) or strict(schema)
                   for name, schema in schemas.items()}
    for name, schema in schemas.items():
        if name.startswith("io.k8s.apimachinery"):
            continue
        for kind in schema.get("x-kubernetes-group-version-kind", []):
            write(folder, kind["kind"], kind["group"], kind["version"],
                  {**definitions[name], "definitions": reachable(definitions[name], definitions)})


def take_resource(path, folder):
    import yaml
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    # Matchers' `=` is a word of YAML 1.1.
    loader.add_constructor("tag:yaml.org,2002:value", lambda _, node: node.value)
    for resource in yaml.load_all(path.read_text(), loader):
        if not resource or resource.get("kind") != "CustomResourceDefinition":
            continue
        spec = resource["spec"]
        for version in spec["versions"]:
            schema = strict(version["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object"}
            write(folder, spec["names"]["kind"], spec["group"], version["name"], schema)


def main():
    folder = pathlib.Path(sys.argv[1])
    for path in map(pathlib.Path, sys.argv[2:]):
        (take_openapi if path.suffix == ".json" else take_resource)(path, folder)


if __name__ == "__main__":
    main()
