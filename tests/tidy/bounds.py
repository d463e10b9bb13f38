"""ARCHITECTURE.md defines each bound and each invariant once: the code's constants have the values of
its table of bounds, and tests cite no invariant that it lacks."""
import re

ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.M)
QUOTED = re.compile(r"`([^`]+)`")
INVARIANT = re.compile(r"\b(?<![\w.])I(\d+)(?=: | holds|\b to I\d)")
UNITS = {"milliseconds": 1, "seconds": 1000, "minutes": 60000, "ms": 1, "s": 1000}


def texts(value, unit):
    """How a document may write it: 2500 milliseconds as 2.5 s or 2,500 ms."""
    if unit not in UNITS:
        return [f"{value:,}"]
    ms = value * UNITS[unit]
    return [f"{ms / 1000:,g} s" if ms % 1000 else f"{ms // 1000:,} s", f"{ms:,} ms"]


def values(name, source):
    """What the source sets a constant or an option to, each as texts."""
    for match in re.finditer(rf"\b{name} = (?:std::chrono::(\w+)\()?([\d']+)[;),}}]", source):
        unit = match.group(1) or name.rpartition("_")[2]
        yield texts(int(match.group(2).replace("'", "")), unit)


def check_bounds(tree, _, report):
    document = "ARCHITECTURE.md"
    page = tree.files.get(document, "")
    begin = page.find("**Bounds**")
    for row in ROW.finditer(page, begin, page.find("\n\n", begin)) if begin >= 0 else ():
        line = page.count("\n", 0, row.start()) + 1
        for group in row.group(3).split(";"):
            quoted = QUOTED.findall(group)
            files = [text for text in quoted if "/" in text] or ["router/node_options.h"]
            for name in (text for text in quoted if "/" not in text):
                for file in files:
                    found = list(values(name, tree.stripped.get(file, "")))
                    if not found:
                        report.add(document, line, "bound", f"{file} sets no {name} to a number")
                    for forms in found:
                        if not any(re.search(rf"(?<![\d.,]){re.escape(form)}(?!\w)", row.group(2))
                                   for form in forms):
                            report.add(document, line, "bound",
                                       f"{name} is {forms[0]} in {file}, which the row does not say")


def check_invariants(tree, _, report):
    known = set(re.findall(r"^\| I(\d+) \|", tree.files.get("ARCHITECTURE.md", ""), re.M))
    for name, text in tree.files.items():
        if not name.startswith("tests/") or name.startswith("tests/tidy/"):
            continue
        for match in INVARIANT.finditer(text):
            if match.group(1) not in known:
                report.add(name, text.count("\n", 0, match.start()) + 1, "invariant",
                           f"ARCHITECTURE.md has no I{match.group(1)}")
