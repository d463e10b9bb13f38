"""One style of braces in C++: a single statement stands on the line of its if, for or while where it
fits, without braces; on a line of its own it has them."""
import re

MAX_COLUMNS = 100
STATEMENT = re.compile(r"\b(?:if|for|while)\s*(?:constexpr\s*)?\(|\belse\b")
BRACED = re.compile(r"^( *)((?:if|for|while)\b[^\n{]*\)) \{\n\1  (\S[^\n{}]*;) *\n\1\}(?! else)", re.M)
# Declares a variable, or has an if of its own, so that it is no single statement.
NESTED = re.compile(r"(?:if|for|while|do|switch|ASSIGN_OR_RETURN|(?:EXPECT|ASSERT)_[A-Z_]+)\b")


def check_braces(tree, _, report):
    for name, text in tree.stripped.items():
        check_missing(name, text, report)
        check_needless(name, text, tree.files[name], report)


def check_missing(name, text, report):
    for match in STATEMENT.finditer(text):
        end = match.end()
        depth = 1 if match.group().endswith("(") else 0
        while depth and end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        body = text[end:].lstrip()
        gap = text[end:len(text) - len(body)]
        one_line = "\n" not in gap + body[:body.find(";")]
        if not one_line and not body.startswith(("{", ";", "if ", "if(")):
            report.add(name, text.count("\n", 0, match.start()) + 1, "statement-braces",
                       "a statement on a line of its own stands in braces")


def check_needless(name, text, original, report):
    for match in BRACED.finditer(text):
        indent, head, body = match.groups()
        whole = original[match.start():match.end()]
        fits = len(indent) + len(head) + 1 + len(body) <= MAX_COLUMNS
        balanced = all(part.count("(") == part.count(")") for part in (head, body))
        if fits and balanced and "//" not in whole and not NESTED.match(body):
            report.add(name, text.count("\n", 0, match.start()) + 1, "statement-braces",
                       "it fits on the line of its condition, without braces")
