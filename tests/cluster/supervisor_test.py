#!/usr/bin/env python3
"""`baton` against stand-ins of the servers: what it starts, reports and stops, and in which order.

Usage: supervisor_test.py PATH_OF_BATON [unittest arguments]
"""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from process_cluster import await_true, is_left

HERE = pathlib.Path(__file__).resolve().parent
BATON = None  # Path of the program under test, set by main.


def wait_for(condition, seconds=10):
    """Polls until the condition holds; its last value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return value


def runs(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class SupervisorTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="baton-supervisor-"))
        self.run_dir = self.folder / "run"
        self.model = self.folder / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text("{}")
        shutil.copy(BATON, self.folder / "baton")
        for role in ("prefill", "decode", "router"):
            shutil.copy(HERE / "fake_server.py", self.folder / f"baton-{role}")

    def tearDown(self):
        self.baton("down", check=False)
        shutil.rmtree(self.folder)

    def command(self, name, *arguments):
        return [self.folder / "baton", name, "--dir", self.run_dir, *map(str, arguments)]

    def baton(self, name, *arguments, check=True):
        done = subprocess.run(self.command(name, *arguments), capture_output=True, text=True,
                              timeout=60)
        if check:
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done

    def up(self, *arguments, check=True):
        return self.baton("up", "--detach", "--model", self.model, "--http", 0, "--grpc", 0,
                          *arguments, check=check)

    def behave(self, **servers):
        names = {name.replace("_", "-"): behaviour for name, behaviour in servers.items()}
        (self.model / "fake.json").write_text(json.dumps(names))

    def state(self):
        return json.loads((self.run_dir / "state.json").read_text())

    def pids(self):
        state = self.state()
        return [s["process"]["pid"] for s in state["servers"]] + [state["supervisor"]["pid"]]

    def log(self, name):
        return (self.run_dir / "logs" / f"{name}.log").read_text()

    def test_up_starts_the_asked_servers_and_hands_options_on(self):
        done = self.up("--prefill", 2, "--decode", 3, "--compute-dtype", "f32", "--block-size", 8,
                       "--threads", 5, "--served-model-name", "kjv")
        self.assertIn("Baton is ready", done.stdout)
        names = [s["name"] for s in self.state()["servers"]]
        self.assertEqual(names, ["prefill-0", "prefill-1", "decode-0", "decode-1", "decode-2",
                                 "router"])
        for worker in names[:-1]:
            for option in ("--compute-dtype f32", "--block-size 8", "--threads 5"):
                self.assertIn(option, self.log(worker))
        for server in self.state()["servers"][:-1]:
            self.assertIn(f"--{server['role']} {server['address']}", self.log("router"))
        self.assertIn("--served-model-name kjv", self.log("router"))

    def test_status_json_has_the_documented_shape(self):
        self.up()
        status = json.loads(self.baton("status", "--json").stdout)
        self.assertEqual(set(status), {"workers", "router", "kv_pairs", "kv_pairs_left_out", "certificates_end"})
        self.assertEqual(status["certificates_end"], {})  # Plaintext: nobody has a certificate.
        self.assertEqual([w["role"] for w in status["workers"]], ["prefill", "decode"])
        for worker in status["workers"]:
            self.assertEqual(set(worker), {"name", "role", "pid", "address", "incarnation", "tp",
                                           "healthy", "blocks", "running", "waiting", "kv_security",
                                           "nccl", "why_no_nccl", "metrics_url", "restarts", "last_exit", "next_try_s"})
            self.assertEqual((worker["restarts"], worker["last_exit"], worker["next_try_s"]),
                             (0, "", None))
            self.assertEqual(worker["blocks"], {"free": 7, "cached": 1, "reserved": 0,
                                                "filling": 0, "ready": 0, "draining": 0})
            self.assertTrue(runs(worker["pid"]))
            self.assertIs(worker["healthy"], True)
            self.assertEqual((worker["running"], worker["waiting"]), (2, 3))
            self.assertRegex(worker["incarnation"], "^[0-9a-f]{16}$")
        self.assertEqual(status["router"]["queued_requests"], 5)
        self.assertIn("prefill", self.baton("status").stdout)

    def test_complete_prints_the_streamed_answer(self):
        self.up()
        self.assertEqual(self.baton("complete", "Moses").stdout, "Mosesanswer to Moses\n")
        self.assertEqual(self.baton("complete", "Hi", "--chat").stdout, "answer to Hi\n")
        self.assertEqual(self.baton("complete", "Hi", "--no-stream").stdout, "Hianswer to Hi\n")

    def test_complete_fails_when_the_server_refuses_or_the_stream_breaks_off(self):
        self.up()
        refused = self.baton("complete", "x", "--max-tokens", 0, check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("max_tokens 0: must be at least 1", refused.stderr)
        broken = self.baton("complete", "x", "--seed", 13, check=False)
        self.assertEqual(broken.returncode, 1)
        self.assertIn("broke off", broken.stderr)

    def test_down_drains_the_router_before_the_workers_and_is_safe_twice(self):
        self.up()
        pids = self.pids()
        self.baton("down")
        self.assertFalse([pid for pid in pids if runs(pid)])
        for name in ("router", "prefill-0", "decode-0"):
            self.assertIn(f"{name} drained", self.log(name))
        times = {name: os.stat(self.run_dir / "logs" / f"{name}.log").st_mtime_ns
                 for name in ("router", "prefill-0", "decode-0")}
        self.assertLess(times["router"], min(times["prefill-0"], times["decode-0"]))
        self.assertIn("No cluster is running", self.baton("down").stdout)

    def test_start_fails_with_the_last_lines_of_the_server_that_died(self):
        self.behave(decode_0={"die_at_start": "config.json: rope_type 'odd' is not supported"})
        done = self.up(check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("decode-0", done.stderr)
        self.assertIn("exit code 3", done.stderr)
        self.assertIn("rope_type 'odd' is not supported", done.stderr)
        self.assertFalse((self.run_dir / "state.json").exists())

    def test_a_server_that_refuses_to_start_is_one_line_and_the_others_stop(self):
        for name in ("decode-1", "router"):
            self.behave(**{name.replace("-", "_"): {"refuse": "--data-port 1: taken; take another"}})
            for detach in ("--detach",), ():
                done = self.baton("up", *detach, "--model", self.model, "--http", 0, "--grpc", 0,
                                  "--decode", 2, check=False)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertEqual(done.stderr, f"baton up: {name}: --data-port 1: taken; take "
                                              f"another; see {self.run_dir}/logs/{name}.log\n")
                self.assertFalse((self.run_dir / "state.json").exists())
                await_true(lambda: is_left(self.run_dir), 20, "the supervisor ends")

    def test_start_fails_when_a_server_is_not_ready_in_time(self):
        self.behave(prefill_0={"never_ready": True})
        done = self.up("--start-timeout-s", 1, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("prefill-0 was not ready within 1 s", done.stderr)

    def test_start_fails_when_no_token_comes_in_time(self):
        self.behave(router={"not_ready": True})
        done = self.up("--start-timeout-s", 5, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no token came end to end within 5 s (/ready says: no token yet)", done.stderr)

    def foreground(self):
        return subprocess.Popen(self.command("up", "--model", self.model, "--http", 0, "--grpc", 0),
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def test_a_signal_ends_the_start(self):
        self.behave(decode_0={"never_ready": True})
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            up = self.foreground()
            self.assertTrue(wait_for(lambda: (self.run_dir / "state.json").exists() and
                                     len(self.pids()) == 3))
            refused = self.baton("restart", check=False)
            self.assertIn("is still starting", refused.stderr)
            started = self.pids()
            up.send_signal(number)
            _, error = up.communicate(timeout=20)
            self.assertEqual(up.returncode, 1)
            self.assertIn("stopped by a signal while starting", error)
            self.assertFalse([pid for pid in started if runs(pid)])

    def test_a_second_signal_does_not_wait(self):
        self.behave(decode_0={"ignore_sigterm": True})
        up = self.foreground()
        for line in up.stdout:
            if line.startswith("Press Ctrl-C"):
                break
        pids = self.pids()[:-1]
        up.send_signal(signal.SIGHUP)
        for line in up.stdout:
            if "draining" in line:
                break
        up.send_signal(signal.SIGINT)
        output, _ = up.communicate(timeout=8)  # Draining alone takes 10 s.
        self.assertIn("killing decode-0, as asked", output)
        self.assertFalse([pid for pid in pids if runs(pid)])

    def test_down_does_not_guess_at_a_damaged_state(self):
        self.run_dir.mkdir()
        (self.run_dir / "state.json").write_text("{")
        done = self.baton("down", check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("remove", done.stderr)
        (self.run_dir / "state.json").unlink()

    def server(self, name):
        return next(s for s in self.state()["servers"] if s["name"] == name)

    def await_restart(self, old):
        """The record of the server that took the place of `old`, once it serves."""
        def successor():
            now = self.server(old["name"])
            changed = now["process"] != old["process"] and now["incarnation"]
            return now if changed else None
        now = wait_for(successor)
        self.assertTrue(now, self.log("baton-up"))
        return now

    def test_crashed_server_is_started_again_on_the_ports_it_had(self):
        self.up("--decode", 2, "--tp-decode", 4)
        self.assertEqual([len(self.server(name)["data_addresses"])
                          for name in ("prefill-0", "decode-1")], [1, 4])
        for name in ("prefill-0", "decode-1", "router"):
            old = self.server(name)
            os.kill(old["process"]["pid"], signal.SIGKILL)
            now = self.await_restart(old)
            for field in ("address", "data_addresses", "http_url", "metrics_url"):
                self.assertEqual(now[field], old[field])
            self.assertNotEqual(now["incarnation"], old["incarnation"])
            self.assertEqual(now["exited"], "")
            self.assertIn(f"{name} (pid {old['process']['pid']}) ended: killed by signal 9 (Killed)",
                          self.log("baton-up"))
            self.assertEqual(self.log(name).count(f"{name} starts with"), 2, "the log is kept")
        self.assertEqual(self.baton("status", "--json").returncode, 0)

    def test_worker_that_an_operator_stops_is_started_again(self):
        self.up()
        old = self.server("decode-0")
        os.kill(old["process"]["pid"], signal.SIGTERM)
        self.await_restart(old)
        self.assertIn("decode-0 drained", self.log("decode-0"))
        self.assertNotIn("in a row", self.log("baton-up"))

    def test_server_that_keeps_crashing_is_never_given_up_and_the_others_go_on(self):
        self.up()
        self.behave(decode_0={"die_at_start": "config.json has gone"})
        old = self.server("decode-0")
        os.kill(old["process"]["pid"], signal.SIGKILL)
        self.assertTrue(wait_for(lambda: "crash 6 in a row" in self.log("baton-up"), 30))
        report = self.log("baton-up")
        for crash, delay in enumerate(("0.2", "0.4", "0.8", "1.6", "3.2", "6.4"), 1):
            self.assertIn(f"starting it again in {delay} s (crash {crash} in a row)", report)
        self.assertIn("config.json has gone", report.split("crash 5 in a row")[1])
        self.assertEqual(self.server("decode-0")["exited"], "exit code 3")
        status = self.baton("status", "--json", check=False)
        worker = next(w for w in json.loads(status.stdout)["workers"] if w["role"] == "decode")
        self.assertEqual((worker["healthy"], worker["restarts"], worker["last_exit"]),
                         (False, 5, "exit code 3"))
        self.assertTrue(0 <= worker["next_try_s"] <= 6.4, worker)
        self.assertIn("decode-0: restarted 5 times, last end: exit code 3; next try in",
                      self.baton("status", check=False).stdout)
        self.behave()
        self.await_restart(old)
        for name in ("prefill-0", "router"):
            self.assertTrue(runs(self.server(name)["process"]["pid"]))
        self.assertEqual(self.baton("status", "--json").returncode, 0)

    def test_down_during_a_restart_leaves_nothing_behind(self):
        for behaviour in ({"never_ready": True}, {"die_at_start": "no"}):
            self.behave()
            self.up()
            old = self.server("prefill-0")
            self.behave(prefill_0=behaviour)
            os.kill(old["process"]["pid"], signal.SIGKILL)
            wait_for(lambda: self.server("prefill-0")["process"] != old["process"])
            pids = self.pids()
            self.baton("down")
            self.assertFalse([pid for pid in pids if runs(pid)])
            self.assertFalse((self.run_dir / "state.json").exists())

    def test_restarted_server_that_never_gets_ready_is_killed_and_started_again(self):
        self.up("--start-timeout-s", 5)
        old = self.server("prefill-0")
        self.behave(prefill_0={"never_ready": True})
        os.kill(old["process"]["pid"], signal.SIGKILL)
        self.assertTrue(wait_for(lambda: "killing prefill-0: it was not ready within 5 s" in
                                 self.log("baton-up"), 60))
        self.behave()
        self.await_restart(old)

    def test_restart_replaces_every_worker_one_after_the_other(self):
        self.up("--prefill", 2, "--decode", 2)
        before = {s["name"]: s for s in self.state()["servers"]}
        done = self.baton("restart")
        lines = [line.split()[0] + line.split()[1] for line in done.stdout.splitlines()]
        names = [name for name in before if name != "router"]
        self.assertEqual(lines, [f"{name}:{word}" for name in names
                                 for word in ("draining", "serves")])
        for name, old in before.items():
            same = self.server(name)["process"] == old["process"]
            self.assertEqual(same, name == "router", name)
        for name in names:
            self.assertIn(f"{name} drained", self.log(name))

    def test_restart_of_one_worker_leaves_the_others_alone(self):
        self.up("--decode", 2)
        before = {s["name"]: s["process"] for s in self.state()["servers"]}
        done = self.baton("restart", "--role", "decode", "--index", 1)
        self.assertNotIn("no other", done.stdout)
        changed = [s["name"] for s in self.state()["servers"] if s["process"] != before[s["name"]]]
        self.assertEqual(changed, ["decode-1"])

    def test_restart_stops_at_a_worker_that_does_not_come_back(self):
        self.up()
        self.behave(prefill_0={"die_at_start": "config.json has gone"})
        decode = self.server("decode-0")
        done = self.baton("restart", check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("prefill-0 does not come back: exit code 3, 3 times in a row", done.stderr)
        self.assertEqual(self.server("decode-0")["process"], decode["process"])

    def test_restart_of_a_worker_with_a_row_of_crashes_behind_it(self):
        self.up()
        old = self.server("decode-0")
        self.behave(decode_0={"die_at_start": "config.json has gone"})
        os.kill(old["process"]["pid"], signal.SIGKILL)
        self.assertTrue(wait_for(lambda: "crash 3 in a row" in self.log("baton-up"), 30))
        self.behave()
        now = self.await_restart(old)
        self.assertGreaterEqual(now["crashes"], 3)
        # The supervisor stands still when the worker ends, so that it notes the end too late.
        supervisor = self.pids()[-1]
        os.kill(supervisor, signal.SIGSTOP)
        try:
            restart = subprocess.Popen(self.command("restart", "--role", "decode"),
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.assertTrue(wait_for(lambda: not runs(now["process"]["pid"])))
            time.sleep(1)
        finally:
            os.kill(supervisor, signal.SIGCONT)
        output, _ = restart.communicate(timeout=60)
        self.assertEqual(restart.returncode, 0, output)
        self.assertIn("no other decode worker is healthy", output)
        self.assertIn("serves again", output)

    def test_restart_gives_a_worker_no_more_than_its_time(self):
        self.up()
        self.behave(prefill_0={"never_ready": True})
        done = self.baton("restart", "--timeout-s", 1, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("prefill-0 was not healthy at the router in time", done.stderr)

    def test_restart_that_cannot_work_is_refused_before_anything_stops(self):
        self.up("--no-restart")
        pids = self.pids()
        for arguments, code, text in (((), 1, "started with --no-restart"),
                                      (("--role", "router"), 2, "--role"),
                                      (("--index", "0"), 2, "--role")):
            done = self.baton("restart", *arguments, check=False)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(text, done.stderr)
        self.assertTrue(all(runs(pid) for pid in pids))

    def test_without_restart_the_supervisor_ends_with_its_last_server(self):
        self.up("--no-restart")
        *servers, supervisor = self.pids()
        for pid in servers:
            os.kill(pid, signal.SIGKILL)
        self.assertTrue(wait_for(lambda: not runs(supervisor)))
        self.assertIn("no server is left", self.log("baton-up"))

    def test_without_restart_a_crashed_worker_is_reported_and_the_rest_keeps_running(self):
        self.up("--no-restart")
        victim, *others = self.pids()
        os.kill(victim, signal.SIGKILL)
        report = wait_for(lambda: "prefill-0" in self.log("baton-up") and self.log("baton-up"))
        self.assertIn("killed by signal 9 (Killed)", report)
        self.assertIn("prefill-0 starts with", report)  # Its last log lines.
        self.assertTrue(all(runs(pid) for pid in others))
        status = self.baton("status", "--json", check=False)
        self.assertEqual(status.returncode, 1)
        self.assertEqual([w["healthy"] for w in json.loads(status.stdout)["workers"]],
                         [False, True])

    def test_no_server_survives_a_killed_supervisor(self):
        self.up()
        *servers, supervisor = self.pids()
        os.kill(supervisor, signal.SIGKILL)
        self.assertTrue(wait_for(lambda: not any(runs(pid) for pid in servers)))
        self.assertIn("is gone", self.baton("status", check=False).stderr)
        self.up()  # Stale state does not stand in the way.

    def test_reused_pid_in_a_stale_state_is_not_taken_for_the_cluster(self):
        self.up()
        state = self.state()
        self.baton("down")
        bystander = subprocess.Popen(["sleep", "60"])
        try:
            for process in [state["supervisor"]] + [s["process"] for s in state["servers"]]:
                process["pid"] = bystander.pid
            (self.run_dir / "state.json").write_text(json.dumps(state))
            self.assertIn("stale state removed", self.baton("down").stdout)
            self.assertIsNone(bystander.poll())
        finally:
            bystander.kill()
            bystander.wait()

    def test_second_up_in_the_same_folder_is_refused_and_harms_nothing(self):
        self.up()
        pids = self.pids()
        done = self.up(check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("already running", done.stderr)
        self.assertIn("baton down --dir", done.stderr)
        self.assertTrue(all(runs(pid) for pid in pids))

    def test_port_in_use_is_named_with_its_cure(self):
        with socket.create_server(("127.0.0.1", 0)) as holder:
            port = holder.getsockname()[1]
            done = self.baton("up", "--detach", "--model", self.model, "--http", port, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn(f"--http {port}: the port is in use", done.stderr)

    def test_missing_model_and_wrong_options_are_one_clear_line(self):
        for arguments, text in ((["--model", "nowhere"], "--model nowhere: no such folder"),
                                (["--model", self.folder], "holds no config.json"),
                                (["--prefill", 0], "--prefill 0: must be 1 to 64"),
                                (["--modle", "x"], "did you mean --model?")):
            done = self.baton("up", *arguments, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn(text, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_a_wrong_command_line_is_refused_before_anything_is_done(self):
        for words, text in ((("stauts",), "did you mean `baton status`?"),
                            (("status", "--intervall-ms", 90), "did you mean --interval-ms?"),
                            (("status", "--interval-ms", 49), "--interval-ms"),
                            (("audit", "--interval-s", -1), "--interval-s"),
                            (("restart", "--timeout-s", 0), "--timeout-s"),
                            (("restart", "--role", "decode", "--index", -1), "--index"),
                            (("complete",), "text")):
            done = self.baton(*words, check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(text, done.stderr)
            self.assertIn("--help", done.stderr)

    def test_foreground_prefixes_logs_and_drains_on_ctrl_c(self):
        up = subprocess.Popen(self.command("up", "--model", self.model, "--http", 0, "--grpc", 0),
                              stdout=subprocess.PIPE, text=True)
        lines = []
        for line in up.stdout:
            lines.append(line)
            if line.startswith("Press Ctrl-C"):
                break
        up.send_signal(signal.SIGINT)
        lines += up.stdout.readlines()
        up.stdout.close()
        self.assertEqual(up.wait(timeout=20), 0)
        text = "".join(lines)
        for line in ("[prefill-0] prefill-0 starts", "[router] router drained", "[baton] stopped"):
            self.assertIn(line, text)

    def test_server_that_ignores_sigterm_is_killed_with_a_message(self):
        self.behave(decode_0={"ignore_sigterm": True})
        self.up()
        pids = self.pids()
        self.baton("down")
        self.assertFalse([pid for pid in pids if runs(pid)])
        self.assertIn("killing decode-0: it did not stop within 10 s", self.log("baton-up"))

    def test_start_is_abandoned_when_its_command_is_killed(self):
        self.behave(decode_0={"never_ready": True})
        command = subprocess.Popen(
            self.command("up", "--detach", "--model", self.model, "--http", 0, "--grpc", 0),
            stdout=subprocess.DEVNULL)
        started = wait_for(lambda: (self.run_dir / "state.json").exists() and
                           len(self.pids()) == 3 and self.pids())
        self.assertTrue(started)
        command.kill()
        command.wait()
        self.assertTrue(wait_for(lambda: not any(runs(pid) for pid in started)))


if __name__ == "__main__":
    BATON = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
