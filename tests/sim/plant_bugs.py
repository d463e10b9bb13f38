#!/usr/bin/env python3
"""Copies node sources with switchable bugs for sim_planted_test.

Usage: plant_bugs.py ROOT BUGS OUT
Writes OUT/<file with / as _> for every source that BUGS names and OUT/planted_names.inc. Fails when
a bug's text does not occur exactly once in its function: the code has moved on, adapt the bug.
"""
import pathlib
import re
import sys


def parse(text):
    bugs = []
    for line in text.splitlines():
        if line.startswith("bug "):
            name, file, function = (part.strip() for part in line[4:].split("|"))
            bugs.append({"name": name, "file": file, "function": function, "becomes": ""})
        elif match := re.match(r"(expression|statement|becomes): (.*)", line):
            key, value = match.groups()
            if key == "becomes":
                bugs[-1]["becomes"] = value
            else:
                bugs[-1]["kind"], bugs[-1]["text"] = key, value
        elif line.strip() and not line.startswith("#"):
            raise ValueError(f"not understood: {line}")
    return bugs


def span(source, bug):
    """Where the bug's text lies: within the definition of its function."""
    where = f"planted bug {bug['name']}, {bug['file']}"
    starts = [m.start() for m in re.finditer(re.escape(bug["function"]), source)
              if source[:m.start()].rsplit("\n", 1)[-1].strip() != ""
              and not source[:m.start()].rsplit("\n", 1)[-1].startswith(" ")]
    if len(starts) != 1:
        raise ValueError(f"{where}: {bug['function']} is defined {len(starts)} times, not once")
    end = source.index("\n}\n", starts[0])
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
    return '#include "tests/sim/planted.h"\n' + source


def write(path, text):
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def main():
    root, bugs_file, out = (pathlib.Path(arg) for arg in sys.argv[1:4])
    bugs = list(enumerate(parse(bugs_file.read_text())))
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted({bug["file"] for _, bug in bugs}):
        mine = [(number, bug) for number, bug in bugs if bug["file"] == file]
        write(out / file.replace("/", "_"), plant((root / file).read_text(), mine))
    write(out / "planted_names.inc", "".join(f'"{bug["name"]}",\n' for _, bug in bugs))


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        sys.exit(f"plant_bugs.py: {error}")
