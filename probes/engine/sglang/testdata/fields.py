"""Writes the order of fields of SGLang's messages, which its MessagePack codec
leaves out, as the JSON table that is built in:

python3 fields.py 0.5.23=DIR ... > ../fields.json

DIR is an unpacked sglang package of that version. Nothing of it is run.
"""

import ast
import json
import os
import sys

FILES = ("managers/io_struct.py", "sampling/sampling_params.py")
CLASSES = (
    "TokenizedGenerateReqInput",
    "TokenizedEmbeddingReqInput",
    "BatchTokenizedGenerateReqInput",
    "BatchTokenizedEmbeddingReqInput",
    "BatchTokenIDOutput",
    "BatchStrOutput",
    "BatchEmbeddingOutput",
    "AbortReq",
    "PickleWrapper",
    "SamplingParams",
)


def classes(root):
    out = {}
    for name in FILES:
        with open(os.path.join(root, "srt", name)) as f:
            for node in ast.parse(f.read()).body:
                if isinstance(node, ast.ClassDef):
                    out[node.name] = node
    return out


def fields(all_classes, name):
    """Fields in order, those of bases first, and whether they are sent as an array."""
    node = all_classes[name]
    names, array = [], False
    for base in node.bases:
        base = ast.unparse(base)
        if base in all_classes:
            inherited, base_array = fields(all_classes, base)
            names += inherited
            array = array or base_array
    for k in node.keywords:
        if k.arg == "array_like":
            array = ast.literal_eval(k.value)
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and not ast.unparse(item.annotation).startswith("ClassVar"):
            if item.target.id not in names:
                names.append(item.target.id)
    return names, array


versions = {}
for arg in sys.argv[1:]:
    version, root = arg.split("=", 1)
    all_classes = classes(root)
    table = {}
    for name in CLASSES:
        names, array = fields(all_classes, name)
        if array:
            table[name] = names
    if not table:
        sys.exit(version + ": no message is an array: this version has no MessagePack codec")
    versions[version] = table

# Lists that versions have in common are written once.
lists, index = [], {}
out = {}
for version, table in versions.items():
    out[version] = {}
    for name, names in table.items():
        key = tuple(names)
        if key not in index:
            index[key] = len(lists)
            lists.append(names)
        out[version][name] = index[key]
print("{\n\"lists\": [")
print(",\n".join(json.dumps(names) for names in lists))
print("],\n\"versions\": {")
print(",\n".join(json.dumps(v) + ": " + json.dumps(t) for v, t in out.items()))
print("}\n}")
