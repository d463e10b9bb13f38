#!/usr/bin/env python3
"""Tests of executions.py: what is counted, kept and added up."""
import pathlib
import tempfile
import unittest

import executions


class ExecutionsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def folder(self, name):
        path = self.root / name
        path.mkdir(parents=True)
        return path

    def test_a_killed_run_counts_up_to_its_last_line(self):
        log = self.folder("work/json/log")
        (log / "0").write_text("#2 INITED\n#4096\tpulse cov: 1\n")
        (log / "1").write_text("#8 NEW\nstat::number_of_executed_units: 70\n")
        executions.count(log.parent)
        self.assertEqual((log.parent / "pending").read_text(), "4166\n")
        executions.count(log.parent)
        self.assertEqual((log.parent / "pending").read_text(), "4166\n")

    def test_the_table_sums_what_is_pending_once(self):
        work, table = self.root / "work", self.root / "executions.md"
        self.folder("work/json")
        self.folder("corpus/json")
        (self.root / "corpus/json/found-one").write_text("x")
        for _ in range(2):
            (work / "json/pending").write_text("6000000\n")
            executions.table(work, table)
            executions.table(work, table)
        self.assertRegex(table.read_text(), r"\| json \| 12,000,000 \| \d{4}-\d\d-\d\d \| 1 \|")

    def test_the_corpus_has_so_many_files_at_most_of_all_sizes(self):
        merged, corpus = self.folder("merged"), self.folder("corpus")
        for size in range(1, executions.MAX_FILES + 2):
            (merged / f"{size:04}").write_bytes(b"x" * size)
        executions.keep(merged, corpus)
        sizes = sorted(file.stat().st_size for file in corpus.iterdir())
        self.assertLessEqual(len(sizes), executions.MAX_FILES)
        self.assertGreater(sizes[-1], executions.MAX_FILES - 1)

    def test_targets_with_enough_executions_wait_for_the_others(self):
        work, table = self.root / "work", self.root / "executions.md"
        table.write_text("| json | 9,000,000 | 2026-01-01 | 0 |\n| http | 5 | 2026-01-01 | 0 |\n")
        self.folder("work/json")
        (work / "json/pending").write_text("1000000\n")
        self.assertEqual(executions.behind(work, table, "http", "json"), ["http"])
        self.assertEqual(executions.behind(work, table, "json"), ["json"])

    def test_the_corpus_is_bounded_and_keeps_findings(self):
        merged, corpus = self.folder("merged"), self.folder("corpus")
        (merged / "a").write_bytes(b"small")
        (merged / "b").write_bytes(b"x" * executions.MAX_BYTES)
        (corpus / "old").write_bytes(b"old")
        (corpus / "found-it").write_bytes(b"bad")
        executions.keep(merged, corpus)
        kept = {file.name: file.read_bytes() for file in corpus.iterdir()}
        self.assertEqual(kept.pop("found-it"), b"bad")
        self.assertEqual(list(kept.values()), [b"small"])


if __name__ == "__main__":
    unittest.main()
