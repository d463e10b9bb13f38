#!/usr/bin/env python3
"""Copies sources with switchable bugs, for sim_planted_test and planted_suites_test.

Usage: plant_bugs.py ROOT BUGS OUT
Writes OUT/<file with / as _> for every source that BUGS names; OUT/planted_names.inc, and
OUT/planted_bugs.list with the tests that each is caught by. Fails when a bug's text does not occur
exactly once in its function: the code has moved on, adapt the bug. BUGS holds, per bug:
  bug NAME | FILE | FUNCTION
  by: the filter of the tests that catch it, in a list of planted_suites_test
  expression or statement: TEXT, which must occur exactly once in that function's body
  becomes: what is computed or done instead; nothing when it is left out
and `copy FILE` for a source that has no bug itself but includes a header that has: a header's copy
is OUT/include/<file>, which copies alone include.
"""
import pathlib
import re
import sys


def parse(text):
    bugs, files = [], set()
    for line in text.splitlines():
        if line.startswith("copy "):
            files.add(line[5:].strip())
        elif line.startswith("bug "):
            name, file, function = (part.strip() for part in line[4:].split("|"))
            files.add(file)
            bugs.append({"name": name, "file": file, "function": function, "becomes": "", "by": ""})
        elif match := re.match(r"(by|expression|statement|becomes): (.*)", line):
            key, value = match.groups()
            if key in ("becomes", "by"):
                bugs[-1][key] = value
            else:
                bugs[-1]["kind"], bugs[-1]["text"] = key, value
        elif line.strip() and not line.startswith("#"):
            raise ValueError(f"not understood: {line}")
    return list(enumerate(bugs)), sorted(files)


def definitions(source, function, indent):
    """Where lines with the function's name begin that are indented so and hold more before it."""
    for match in re.finditer(re.escape(function), source):
        before = source[:match.start()].rsplit("\n", 1)[-1]
        if before.strip() and len(before) - len(before.lstrip()) == indent:
            yield match.start()


def span(source, bug):
    """Where the bug's text lies: within the definition of its function, or of its class's method."""
    where = f"planted bug {bug['name']}, {bug['file']}"
    indent = 0 if any(definitions(source, bug["function"], 0)) else 2
    starts = list(definitions(source, bug["function"], indent))
    if len(starts) != 1:
        raise ValueError(f"{where}: {bug['function']} is defined {len(starts)} times, not once")
    end = source.index("\n" + " " * indent + "}\n", starts[0])
    count = source.count(bug["text"], starts[0], end)
    if count != 1:
        raise ValueError(f"{where}: its text occurs {count} times in {bug['function']}), not once")
    begin = source.index(bug["text"], starts[0])
    return begin, begin + len(bug["text"])


def switch(text, bugs):
    """The original text, or what the planted one of these bugs does instead."""
    for number, bug in bugs:
        if bug["kind"] == "expression":
            text = f"(planted({number}) ? ({bug['becomes']}) : ({text}))"
        else:
            text = f"if (planted({number})) {{ {bug['becomes']} }} else {{ {text} }}"
    return text


def plant(source, bugs):
    by_span = {}
    for number, bug in bugs:
        by_span.setdefault(span(source, bug), []).append((number, bug))
    spans = sorted(by_span, reverse=True)
    for later, earlier in zip(spans, spans[1:]):
        if earlier[1] > later[0]:
            names = [bug["name"] for s in (earlier, later) for _, bug in by_span[s]]
            raise ValueError(f"planted bugs overlap: {', '.join(names)}")
    for begin, end in spans:
        source = source[:begin] + switch(source[begin:end], by_span[begin, end]) + source[end:]
    include = '#include "tests/planted/planted.h"\n'
    if source.startswith("#pragma once\n"):
        return source.replace("\n", "\n" + include, 1)
    return include + source


def write(path, text):
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def main():
    root, bugs_file, out = (pathlib.Path(arg) for arg in sys.argv[1:4])
    bugs, files = parse(bugs_file.read_text())
    for file in files:
        mine = [(number, bug) for number, bug in bugs if bug["file"] == file]
        copy = out / "include" / file if file.endswith(".h") else out / file.replace("/", "_")
        copy.parent.mkdir(parents=True, exist_ok=True)
        write(copy, plant((root / file).read_text(), mine))
    for copy in (out / "include").rglob("*.h"):  # Of a list of before: it would hide the header.
        if str(copy.relative_to(out / "include")) not in files:
            copy.unlink()
    write(out / "planted_names.inc", "".join(f'"{bug["name"]}",\n' for _, bug in bugs))
    write(out / "planted_bugs.list", "".join(f'{bug["name"]} {bug["by"]}\n' for _, bug in bugs))


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        sys.exit(f"plant_bugs.py: {error}")
