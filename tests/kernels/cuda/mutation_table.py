"""What found each mutation of mutations.py, kept in a file: a line for each that was run.

The first line counts them; what follows, up to an empty line, is for readers and stays.
"""
import os

SURVIVES = "SURVIVES: "


def key_of(mutation):
    return f"{mutation[0]}: {mutation[3]}"


class Table:
    """Of `mutations`, in their order; lines of others are not kept."""

    def __init__(self, mutations, path):
        self.keys = [key_of(mutation) for mutation in mutations]
        self.path = path

    def read(self):
        """(what is for readers, key -> what found it, lines that are of no mutation)"""
        text = self.path.read_text() if self.path.exists() else ""
        head, _, body = text.partition("\n\n")
        found, others = {}, []
        for line in body.splitlines():
            # One name may begin another.
            fits = [key for key in self.keys if line.startswith(key + ": ")]
            key = max(fits, key=len, default=None)
            if key is None or key in found:
                others.append(line)
            else:
                found[key] = line.removeprefix(key + ": ")
        return head.partition("\n")[2], found, others

    def first_line(self, found):
        survivors = sum(says.startswith(SURVIVES) for says in found.values())
        return (f"{len(found)} of the {len(self.keys)} mutations of mutations.py were run: "
                f"{survivors} survive.")

    def put(self, mutation, says):
        """In place of what was there of it; at once, so that a run that is stopped loses nothing."""
        notes, found, _ = self.read()
        found[key_of(mutation)] = " ".join(says.split())
        head = "\n".join(filter(None, [self.first_line(found), notes]))
        lines = [f"{key}: {found[key]}" for key in self.keys if key in found]
        half = self.path.with_suffix(f".{os.getpid()}")
        half.write_text("\n".join([head, "", *lines, ""]))
        half.rename(self.path)
