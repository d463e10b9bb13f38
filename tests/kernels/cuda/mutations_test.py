#!/usr/bin/env python3
"""The mutations of the kernels are of the kernels as they are: each one's text occurs once.

Usage: mutations_test.py [unittest arguments]
"""
import collections
import unittest

import mutations


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


if __name__ == "__main__":
    unittest.main()
