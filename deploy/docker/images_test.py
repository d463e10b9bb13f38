#!/usr/bin/env python3
"""images_test.py BIN: the image of the programs in BIN, and the Dockerfiles and compose.yaml.

Makes the root folder of the image, judges its size and what is in it, starts its programs by its
own loader and libraries, and compares every option of compose.yaml with their --help.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.path.abspath(sys.argv.pop(1))
LIMIT_MB = 80
DOCKERFILES = {"Dockerfile.cpu": "release", "Dockerfile.gpu": "cuda"}
MODEL = "/usr/share/baton/models/tiny-kjv"


def read(name):
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        return file.read()


def instructions(text):
    """(NAME, argument) of each, lines with a backslash joined."""
    lines = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.M)).splitlines()
    return [tuple(line.split(None, 1)) for line in lines if line.strip()]


class Root(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory(prefix="baton-image-")
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.root = os.path.join(cls.scratch.name, "root")
        subprocess.run([os.path.join(HERE, "rootfs.sh"), BIN, cls.root], check=True)

    def start(self, program, *options):
        """By the image's loader, with its libraries alone, as without a chroot one can."""
        loader = self.root + "/lib64/ld-linux-x86-64.so.2"
        libraries = self.root + "/lib/x86_64-linux-gnu:" + self.root + "/usr/lib/x86_64-linux-gnu"
        return subprocess.run(
            [loader, "--inhibit-cache", "--library-path", libraries,
             f"{self.root}/usr/bin/{program}", *options],
            capture_output=True, text=True, timeout=60)

    def test_is_small_enough(self):
        files = {}
        for folder, _, names in os.walk(self.root):
            for name in names:
                info = os.lstat(os.path.join(folder, name))
                files[info.st_ino] = info.st_size
        self.assertLess(sum(files.values()), LIMIT_MB * 1000 * 1000)

    def test_every_program_starts(self):
        for program in ("baton", "baton-router", "baton-prefill", "baton-decode"):
            with self.subTest(program):
                result = self.start(program, "--help")
                self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_model_volume_without_config_is_named(self):
        empty = os.path.join(self.root, "models")
        for program in ("baton-prefill", "baton-decode"):
            with self.subTest(program):
                result = self.start(program, "--model", empty)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn(empty + "/config.json: no such file", result.stderr)

    def test_what_programs_need_is_there_and_no_shell(self):
        for name in (MODEL + "/config.json", "/etc/ssl/certs/ca-certificates.crt"):
            self.assertTrue(os.path.isfile(self.root + name), name)
        with open(self.root + "/etc/nsswitch.conf", encoding="utf-8") as file:
            self.assertEqual(file.read(), "hosts: files dns\n")
        for shell in ("/bin/sh", "/usr/bin/sh", "/bin/bash", "/usr/bin/bash"):
            self.assertFalse(os.path.lexists(self.root + shell), shell)

    def test_files_are_readable_by_the_user_and_set_no_ids(self):
        for folder, _, names in os.walk(self.root):
            for path in [folder] + [os.path.join(folder, name) for name in names]:
                mode = os.lstat(path).st_mode
                self.assertTrue(mode & 0o004, path)
                self.assertFalse(mode & 0o6000, path)


class Dockerfiles(unittest.TestCase):
    def test_end_as_a_user_without_rights_and_on_scratch(self):
        for name in DOCKERFILES:
            with self.subTest(name):
                steps = instructions(read(name))
                last = max(i for i, step in enumerate(steps) if step[0] == "FROM")
                self.assertEqual(steps[last], ("FROM", "scratch"))
                self.assertIn(("USER", "65532:65532"), steps[last:])
                known = {"ARG", "FROM", "ENV", "WORKDIR", "COPY", "RUN", "USER", "CMD"}
                self.assertLessEqual({step[0] for step in steps}, known)


    def test_build_what_the_presets_have_and_the_root_folder_takes(self):
        with open(os.path.join(HERE, "../../CMakePresets.json"), encoding="utf-8") as file:
            presets = {one["name"]: one for one in json.load(file)["configurePresets"]}
        for name, preset in DOCKERFILES.items():
            with self.subTest(name):
                run, = [step[1] for step in instructions(read(name)) if step[0] == "RUN"]
                self.assertEqual(re.findall(r"--preset (\S+)", run), [preset])
                folder = presets[preset]["binaryDir"].removeprefix("${sourceDir}/")
                self.assertIn(f"cmake --build {folder} --target", run)
                self.assertIn(f"deploy/docker/rootfs.sh {folder}/bin /rootfs", run)
                programs = re.search(r"--target ((?:baton[a-z-]* )+)", run).group(1).split()
                in_root, = re.findall(r"(?m)^programs=\((.*)\)$", read("rootfs.sh"))
                self.assertEqual(programs, in_root.split())
        self.assertEqual(presets["cuda"]["cacheVariables"]["BATON_CUDA"], "ON")

    def test_differ_in_the_preset_and_in_what_a_driver_needs_alone(self):
        cpu, gpu = [instructions(read(name).replace(f"build/{preset}", "build/PRESET")
                                 .replace(f"--preset {preset}", "--preset PRESET"))
                    for name, preset in DOCKERFILES.items()]
        self.assertEqual([step for step in gpu if step[0] != "ENV"], cpu)
        driver = dict(word.split("=") for step in gpu if step[0] == "ENV"
                      for word in step[1].split())
        self.assertEqual(driver, {"NVIDIA_VISIBLE_DEVICES": "all",
                                  "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
                                  "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"})


class Compose(unittest.TestCase):
    def setUp(self):
        self.compose = yaml.safe_load(read("compose.yaml"))
        self.services = self.compose["services"]

    def test_every_service_is_confined(self):
        self.assertEqual(set(self.services), {"certs", "prefill", "decode", "router"})
        for name, service in self.services.items():
            with self.subTest(name):
                self.assertIs(service["read_only"], True)
                self.assertEqual(service["cap_drop"], ["ALL"])
                self.assertEqual(service["user"], "65532:65532")
                self.assertIn("no-new-privileges:true", service["security_opt"])

    def test_options_exist(self):
        for name in ("prefill", "decode", "router"):
            program, *options = self.services[name]["command"]
            shown = subprocess.run([BIN + "/" + os.path.basename(program), "--help"], check=True,
                                   capture_output=True, text=True, timeout=60).stdout
            known = set(re.findall(r"^ +(--[a-z0-9-]+)", shown, flags=re.M))
            for option in options:
                self.assertIn(option.split("=")[0], known, name)

    def test_servers_see_only_their_own_certificate(self):
        for name in ("prefill", "decode", "router"):
            volume, = self.services[name]["volumes"]
            self.assertEqual(volume["volume"]["subpath"], "certs/" + name)
            self.assertIs(volume["read_only"], True)

    def test_the_plaintext_api_is_on_loopback(self):
        self.assertEqual(self.services["router"]["ports"], ["127.0.0.1:8000:8000"])

    def test_addresses_are_those_listened_on(self):
        for name in ("prefill", "decode"):
            address = self.services[name]["networks"]["baton"]["ipv4_address"]
            self.assertIn("--host=" + address, self.services[name]["command"])
            self.assertIn(f"--{name}=dns:///{name}:7000", self.services["router"]["command"])


if __name__ == "__main__":
    unittest.main()
