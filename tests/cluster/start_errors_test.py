#!/usr/bin/env python3
"""A program that cannot start says why in one line, as a person would write it.

Usage: start_errors_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

BIN = None
MODEL = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "models" / "tiny-kjv"


class StartErrorsTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="baton-start-errors-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def model(self, **changes):
        """A folder with the small model and these fields of config.json changed."""
        folder = self.folder / "model"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(MODEL, folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))
        return folder

    def errors(self, model):
        """What each of the four programs says on stderr when it is started on this folder."""
        router = ["--prefill", "127.0.0.1:1", "--decode", "127.0.0.1:2", "--http-port", "0",
                  "--grpc-port", "0"]
        commands = {"baton-prefill": ["--port", "0"], "baton-decode": ["--port", "0"],
                    "baton-router": router,
                    "baton": ["up", "--dir", self.folder / "run", "--http", "0", "--grpc", "0"]}
        for name, arguments in commands.items():
            done = subprocess.run([BIN / name, *arguments, "--model", model], text=True,
                                  capture_output=True, timeout=60)
            self.assertEqual(done.returncode, 2, f"{name}: {done.stderr}")
            last = done.stderr.strip().splitlines()[-1]
            self.assertNotIn("\\", last, name)
            yield name, last

    def test_value_of_a_field_is_shown_as_it_is_written(self):
        for name, said in self.errors(self.model(architectures=["FalconForCausalLM"],
                                                 model_type="falcon")):
            self.assertIn('"FalconForCausalLM"', said, name)
            self.assertIn("LlamaForCausalLM", said, name)

    def test_value_that_is_not_supported_is_shown_as_json(self):
        for name, said in self.errors(self.model(rope_scaling={"rope_type": "odd"})):
            self.assertIn('field "rope_type" is "odd"', said, name)

    def test_text_that_is_no_json_is_shown_as_it_is(self):
        model = self.model()
        (model / "config.json").write_text('{"a": "it\'s')
        for name, said in self.errors(model):
            self.assertIn('"it\'s', said, name)


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
