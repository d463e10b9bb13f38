"""What documents say of the code by name is there: `Class::Function` in the class's own files, and in
ARCHITECTURE.md what stands right before a file, as in `RouterNode::Dispatch`, `Choose`
(`router/dispatch.cc`), in that file."""
import collections
import re

CODE = re.compile(r"`[^`\n]+`")
MEMBER = re.compile(r"\b([A-Z]\w+)::(\w+)\b")
TYPE = re.compile(r"\b(?:class|struct|union|enum)\s+(?:\w+\([^)]*\)\s+)?([A-Z]\w+)\b")
PLACED = re.compile(r"((?:`[\w:]+`(?:, | and )?)+)\s\(`([\w/]+\.\w+)`")


def has_word(text, word):
    return re.search(rf"\b{word}\b", text) is not None


def check_citations(tree, _, report):
    homes = collections.defaultdict(set)  # Of a type: where it is declared.
    for file, text in tree.stripped.items():
        for match in TYPE.finditer(text):
            homes[match.group(1)].add(file)

    def is_member(owner, name):
        files = [file for file in tree.stripped if file.rpartition(".")[0] in
                 {home.rpartition(".")[0] for home in homes[owner]}]
        return any(has_word(tree.stripped[file], name) for file in files)

    for document, text in tree.files.items():
        if not document.endswith(".md"):
            continue
        for code in CODE.finditer(text):
            for owner, name in MEMBER.findall(code.group()):
                if not is_member(owner, name):
                    report.add(document, text.count("\n", 0, code.start()) + 1, "citation",
                               f"there is no {owner}::{name}")
        for placed in PLACED.finditer(text) if document == "ARCHITECTURE.md" else ():
            names, place = placed.groups()
            files = [file for file in tree.files if f"/{file}".endswith(f"/{place}")]
            for name in CODE.findall(names) if files else ():
                last = name.strip("`").rpartition("::")[2]
                if not any(has_word(tree.files[file], last) for file in files):
                    report.add(document, text.count("\n", 0, placed.start()) + 1, "citation",
                               f"{place} has no {last}")
