#!/usr/bin/env python3
"""The mutations of the kernels are of the kernels as they are: each one's text occurs once. So is the
table of what found them, which mutations.py --table fills.

Usage: mutations_test.py [unittest arguments]
"""
import collections
import pathlib
import tempfile
import unittest

import mutation_table
import mutations

RESULTS = pathlib.Path(__file__).resolve().parent / "mutation_results.txt"


class MutationsTest(unittest.TestCase):
    def test_each_text_occurs_exactly_once_in_its_file(self):
        for file, _, _, name, text, replacement in mutations.MUTATIONS:
            with self.subTest(file=file, name=name):
                source = mutations.ROOT / mutations.path_of(file.partition(":")[0])
                content = source.read_text()
                self.assertEqual(content.count(text), 1, text)
                self.assertNotEqual(content.replace(text, replacement), content)

    def test_no_two_share_a_name(self):
        names = collections.Counter((m[0], m[3]) for m in mutations.MUTATIONS)
        self.assertEqual([name for name, times in names.items() if times > 1], [])
        self.assertGreater(len(names), 200)

    def test_each_line_of_the_table_is_of_one_of_them_and_its_numbers_fit(self):
        table = mutation_table.Table(mutations.MUTATIONS, RESULTS)
        _, found, others = table.read()
        self.assertEqual(others, [], "mutations.py --table leaves out what is no more")
        self.assertEqual(RESULTS.read_text().splitlines()[0], table.first_line(found))
        self.assertNotIn("", found.values())


class MutationTableTest(unittest.TestCase):
    MUTATIONS = [("b.cu", "", "", name, "", "") for name in ("half", "half: of it", "none")]

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "table.txt"
        self.table = mutation_table.Table(self.MUTATIONS, self.path)

    def test_results_replace_what_was_said_and_stand_in_the_mutations_order(self):
        self.table.put(self.MUTATIONS[2], "a crash")
        self.table.put(self.MUTATIONS[1], "SURVIVES: every\ntest passed")
        self.table.put(self.MUTATIONS[2], "values: A.B")
        self.assertEqual(self.path.read_text().splitlines(), [
            "2 of the 3 mutations of mutations.py were run: 1 survive.", "",
            "b.cu: half: of it: SURVIVES: every test passed", "b.cu: none: values: A.B"])

    def test_notes_stay_and_lines_of_no_mutation_go(self):
        self.path.write_text("9 of 9\nA note,\nof two lines.\n\nb.cu: gone: a crash\n"
                             "b.cu: half: a crash\nb.cu: half: a race\n")
        notes, found, others = self.table.read()
        self.assertEqual(notes, "A note,\nof two lines.")
        self.assertEqual(found, {"b.cu: half": "a crash"})
        self.assertEqual(others, ["b.cu: gone: a crash", "b.cu: half: a race"])
        self.table.put(self.MUTATIONS[0], "a deadlock")
        self.assertEqual(self.path.read_text().splitlines(), [
            "1 of the 3 mutations of mutations.py were run: 0 survive.",
            "A note,", "of two lines.", "", "b.cu: half: a deadlock"])


if __name__ == "__main__":
    unittest.main()
