#!/usr/bin/env python3
"""The chart deploy/helm/baton, without Helm: its values against its schema, its committed renderings
against Pod Security "restricted", the programs' options, ports and metrics.

Usage: chart_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""
import copy
import json
import pathlib
import re
import subprocess
import sys
import unittest
import urllib.request

import jsonschema
import yaml

import chart_hash
import network_edges

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))
from process_cluster import MODEL, START_LIMIT_S, await_true  # noqa: E402
from running_cluster import RunningCluster  # noqa: E402

ROOT = chart_hash.ROOT
CHART = ROOT / "deploy/helm/baton"
HERE = ROOT / "tests/k8s"
ROLES = ("router", "prefill", "decode")
# What these sets ask for is what Pod Security "restricted" is against: IPC_LOCK.
UNRESTRICTED = ("gpu",)
BIN = None


def load(path):
    return yaml.load(path.read_text(), yaml.CSafeLoader)


SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = load(CHART / "values.yaml")
SETS = {path.stem: load(path) for path in sorted((HERE / "values").glob("*.yaml"))}
RENDERINGS = {path.stem: [one for one in yaml.load_all(path.read_text(), yaml.CSafeLoader) if one]
              for path in sorted((HERE / "renderings").glob("*.yaml"))}


def coalesce(values, defaults):
    """As Helm: maps are merged, null takes a default away, and stays where there is none."""
    made = copy.deepcopy(defaults)
    for key, value in values.items():
        if value is None and key in made:
            made.pop(key)
        elif isinstance(value, dict) and isinstance(made.get(key), dict):
            made[key] = coalesce(value, made[key])
        else:
            made[key] = copy.deepcopy(value)
    return made


def refusals(values):
    """The paths that the schema refuses, those inside of an anyOf, oneOf or if too."""
    found, todo = set(), list(
        jsonschema.Draft7Validator(SCHEMA).iter_errors(coalesce(values, VALUES)))
    while todo:
        error = todo.pop()
        found.add("/" + "/".join(map(str, error.absolute_path)))
        todo += error.context or []
    return found


def set_at(path, value):
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def objects(rendering, *kinds):
    return [one for one in rendering if one["kind"] in kinds]


def pods(rendering):
    """Name, labels and spec of each pod."""
    for one in objects(rendering, "Deployment"):
        template = one["spec"]["template"]
        yield one["metadata"]["name"], template["metadata"]["labels"], template["spec"]
    for one in objects(rendering, "Pod"):
        yield one["metadata"]["name"], one["metadata"]["labels"], one["spec"]


def containers(spec):
    return spec.get("initContainers", []) + spec["containers"]


def programs(rendering):
    """Name and arguments of what the pods run, but for init containers."""
    for _, _, spec in pods(rendering):
        for container in spec["containers"]:
            yield pathlib.PurePosixPath(container["command"][0]).name, container["args"]


def option(arguments, flag):
    found = [word.partition("=")[2] for word in arguments if word.partition("=")[0] == flag]
    assert len(found) == 1, f"{flag} is given {len(found)} times"
    return found[0]


class Values(unittest.TestCase):
    def test_every_set_of_values_passes_the_schema(self):
        for name, values in SETS.items():
            with self.subTest(name):
                self.assertEqual(refusals(values), set())

    def test_bad_values_are_refused_by_their_path(self):
        keys = {"apiKeys": {"existingSecret": "k"}}
        bad = json.loads((HERE / "bad_values.json").read_text())
        self.assertGreater(len(bad), 110)
        for values, path in bad:
            with self.subTest(values):
                given = keys
                for where, value in values.items():
                    given = coalesce(set_at(where, value), given)
                self.assertIn(path, refusals(given))
        self.assertIn("/apiKeys/existingSecret", refusals({}))

    def test_the_schema_knows_every_value_and_no_other(self):
        def check(schema, values, path):
            schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]] if (
                "$ref" in schema) else schema
            if "properties" not in schema:
                return
            self.assertIs(schema.get("additionalProperties"), False, path)
            for key in values:
                self.assertIn(key, schema["properties"], path)
                if isinstance(values[key], dict):
                    check(schema["properties"][key], values[key], f"{path}.{key}")
        check(SCHEMA, VALUES, "values")
        for key in SCHEMA["properties"]:
            self.assertIn(key, VALUES)

    def test_every_value_is_read_by_a_template(self):
        text = "".join(path.read_text() for path in (CHART / "templates").rglob("*.*"))

        def check(values, path):
            for key, value in values.items():
                self.assertRegex(text, rf"\b{key}\b", f"{path}.{key}")
                if isinstance(value, dict) and not path.startswith(".router.resources"):
                    check(value, f"{path}.{key}")
        for role in ROLES:
            check({key: value for key, value in VALUES[role].items()
                   if key not in ("resources", "podSecurityContext")}, f".{role}")
        check({key: value for key, value in VALUES.items()
               if key not in (*ROLES, "global")}, "")


class Renderings(unittest.TestCase):
    def each(self):
        self.assertGreaterEqual(len(RENDERINGS), 6)
        for name, rendering in RENDERINGS.items():
            with self.subTest(name):
                yield name, rendering

    def test_the_renderings_are_of_this_chart_and_these_values(self):
        self.assertEqual((HERE / "renderings/HASH").read_text().strip(), chart_hash.chart_hash(),
                         "run tests/k8s/render.sh --write, which needs Helm or Go")

    def test_no_object_is_rendered_twice_or_outside_the_namespace(self):
        for name, rendering in self.each():
            ids = [(one["kind"], one["metadata"]["name"]) for one in rendering]
            self.assertEqual(len(ids), len(set(ids)))
            for one in rendering:
                if one["metadata"]["name"] != "extra":
                    self.assertEqual(one["metadata"]["namespace"], "llm")

    def test_pods_fit_pod_security_restricted(self):
        for name, rendering in self.each():
            for pod, _, spec in pods(rendering):
                context = spec["securityContext"]
                self.assertTrue(context["runAsNonRoot"], pod)
                self.assertNotEqual(context["runAsUser"], 0)
                self.assertEqual(context["seccompProfile"]["type"], "RuntimeDefault")
                for field in ("hostNetwork", "hostPID", "hostIPC"):
                    self.assertFalse(spec.get(field))
                for volume in spec["volumes"]:
                    kinds = volume.keys() - {"name"}
                    self.assertLessEqual(kinds, {"projected", "secret", "configMap", "emptyDir",
                                                 "persistentVolumeClaim", "downwardAPI"})
                for container in containers(spec):
                    own = container["securityContext"]
                    self.assertIs(own["allowPrivilegeEscalation"], False)
                    self.assertEqual(own["capabilities"]["drop"], ["ALL"])
                    self.assertNotIn("privileged", own)
                    self.assertNotIn("hostPort", str(container.get("ports")))
                    added = own["capabilities"].get("add", [])
                    self.assertEqual(bool(added),
                                     name in UNRESTRICTED and container["name"] == "prefill")

    def test_only_containers_with_a_gpu_can_write_to_their_root(self):
        for _, rendering in self.each():
            for _, _, spec in pods(rendering):
                for container in containers(spec):
                    has_gpu = "nvidia.com/gpu" in container.get("resources", {}).get("limits", {})
                    self.assertIs(container["securityContext"]["readOnlyRootFilesystem"],
                                  not has_gpu)

    def test_no_pod_has_a_token_or_a_secret_in_its_environment_by_the_chart(self):
        for name, rendering in self.each():
            for pod, _, spec in pods(rendering):
                self.assertIs(spec["automountServiceAccountToken"], False, pod)
                self.assertIs(spec["enableServiceLinks"], False)
                for container in spec["containers"]:
                    self.assertNotIn("secretKeyRef", str(container.get("env")))
                    self.assertNotIn("subPath", str(container["volumeMounts"]))
            for one in objects(rendering, "ServiceAccount"):
                self.assertIs(one["automountServiceAccountToken"], False)

    def test_secrets_are_for_the_group_alone_and_the_api_key_of_the_test_is_not_the_routers(self):
        for _, rendering in self.each():
            for pod, labels, spec in pods(rendering):
                self.assertGreater(spec["securityContext"]["fsGroup"], 0)
                for volume in spec["volumes"]:
                    for source in [volume.get("secret"), volume.get("projected")]:
                        if source is not None:
                            self.assertEqual(source["defaultMode"], 0o440, pod)
                role = labels["app.kubernetes.io/component"]
                mounted = json.dumps(spec["volumes"])
                self.assertEqual("client-key" in mounted, role == "test")
                self.assertEqual('"tls.key"' in mounted, role != "test")

    def test_each_role_runs_under_its_own_identity(self):
        for name, rendering in self.each():
            values = coalesce(SETS[name], VALUES)["tls"]
            certificates = {one["spec"]["secretName"]: one["spec"]
                            for one in objects(rendering, "Certificate") if "uris" in one["spec"]}
            for _, labels, spec in pods(rendering):
                role = labels["app.kubernetes.io/component"]
                if role == "test":
                    continue
                self.assertEqual(spec["serviceAccountName"], f"baton-{role}")
                tls = next(v for v in spec["volumes"] if v["name"] == "tls")
                secret = tls["projected"]["sources"][0]["secret"]["name"]
                if values["mode"] == "existingSecret":
                    self.assertEqual(secret, values["secrets"][role])
                    self.assertEqual(certificates, {})
                    continue
                self.assertEqual(certificates[secret]["uris"],
                                 [f"spiffe://{values['trustDomain']}/ns/llm/sa/baton-{role}"])
                self.assertEqual(certificates[secret]["privateKey"]["rotationPolicy"], "Always")

    def test_drains_end_before_the_pods_grace_does(self):
        for _, rendering in self.each():
            for one in objects(rendering, "Deployment"):
                spec = one["spec"]["template"]["spec"]
                container = spec["containers"][0]
                stop = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {})
                drain = int(option(container["args"], "--drain-timeout-s"))
                self.assertLess(stop.get("seconds", 0) + drain,
                                spec["terminationGracePeriodSeconds"])
                self.assertEqual("lifecycle" in container, container["name"] == "router")

    def test_an_old_worker_goes_when_routers_know_the_new_one(self):
        cached = 5 + 3  # CoreDNS' time to live, and a look of the router's.
        for _, rendering in self.each():
            for one in objects(rendering, "Deployment"):
                if not one["metadata"]["name"].endswith("router"):
                    self.assertGreater(one["spec"]["minReadySeconds"], cached)

    def test_services_lead_to_ports_of_the_pods_that_they_select(self):
        for _, rendering in self.each():
            for service in objects(rendering, "Service"):
                selector = service["spec"]["selector"]
                chosen = [spec for _, labels, spec in pods(rendering)
                          if selector.items() <= labels.items()]
                self.assertEqual(len(chosen), 1, service["metadata"]["name"])
                ports = {port["name"]: port["containerPort"]
                         for port in chosen[0]["containers"][0]["ports"]}
                for port in service["spec"]["ports"]:
                    self.assertIn(port["targetPort"], ports)
                    if service["spec"].get("clusterIP") == "None":
                        self.assertEqual(port["port"], ports[port["targetPort"]])

    def test_a_scaled_deployment_leaves_its_replicas_to_the_scaler(self):
        for _, rendering in self.each():
            scalers = objects(rendering, "ScaledObject", "HorizontalPodAutoscaler")
            scaled = {one["spec"]["scaleTargetRef"]["name"] for one in scalers}
            for one in objects(rendering, "Deployment"):
                self.assertEqual("replicas" in one["spec"], one["metadata"]["name"] not in scaled)


class Network(unittest.TestCase):
    def test_policies_allow_the_programs_connections_and_no_others(self):
        tried = 0
        for name, rendering in RENDERINGS.items():
            with self.subTest(name):
                if not objects(rendering, "NetworkPolicy"):
                    continue
                tried += 1
                arguments = {name.removeprefix("baton-"): args
                             for name, args in programs(rendering) if name != "baton"}
                self.assertEqual(
                    network_edges.allowed(rendering, pods(rendering)),
                    network_edges.needed(arguments, coalesce(SETS[name], VALUES)))
        self.assertGreaterEqual(tried, 5)

    def test_routers_look_for_workers_where_they_listen(self):
        for name, rendering in RENDERINGS.items():
            with self.subTest(name):
                arguments = dict(programs(rendering))
                domain = coalesce(SETS[name], VALUES)["clusterDomain"]
                for role in ("prefill", "decode"):
                    port = option(arguments[f"baton-{role}"], "--port")
                    self.assertEqual(option(arguments["baton-router"], f"--{role}"),
                                     f"dns:///baton-{role}.llm.svc.{domain}.:{port}")


class Programs(unittest.TestCase):
    """The programs of this build."""

    def test_every_option_of_the_chart_is_one_of_the_program(self):
        used = {}
        for rendering in RENDERINGS.values():
            for program, arguments in programs(rendering):
                words = {word.partition("=")[0] for word in arguments if word.startswith("--")}
                used.setdefault(program, set()).update(words)
        self.assertEqual(used.keys(), {"baton", "baton-router", "baton-prefill", "baton-decode"})
        for program, flags in used.items():
            command = [BIN / program] + (["complete"] if program == "baton" else [])
            known = subprocess.run([*command, "--help"], capture_output=True, text=True,
                                   timeout=60, check=True).stdout
            for flag in sorted(flags):
                with self.subTest(program=program, flag=flag):
                    self.assertRegex(known, rf"(?m)^\s+(-\w,)?{flag}\b(?!-)")

    def test_servers_take_the_arguments_and_miss_their_files_alone(self):
        for name, rendering in RENDERINGS.items():
            for program, arguments in programs(rendering):
                if program == "baton":
                    continue
                with self.subTest(name, program=program):
                    arguments = [word.replace("$(POD_IP)", "10.0.0.2").replace("$(CPU_LIMIT)", "2")
                                 for word in arguments]
                    ended = subprocess.run([BIN / program, *arguments], capture_output=True,
                                           text=True, timeout=60)
                    self.assertNotEqual(ended.returncode, 0)
                    self.assertRegex(ended.stderr + ended.stdout,
                                     "--tls-dir /etc/baton/tls|--device cuda")


class Operation(unittest.TestCase):
    """What a running cluster exports, beside what the chart asks for."""

    @classmethod
    def setUpClass(cls):
        cluster = cls.enterClassContext(
            RunningCluster(BIN / "baton", "chart", tls=True, device="cpu", threads=1))
        cluster.baton("complete", "--max-tokens", "2", "In the")
        cls.urls, cls.series = {}, []
        for server in json.loads((cluster.dir / "state.json").read_text())["servers"]:
            cls.urls[server["role"]] = server["metrics_url"].removesuffix("/metrics")
            cls.scrape(server["metrics_url"])
        cls.scrape(cls.start_router_of_an_api(cluster.dir))

    @classmethod
    def scrape(cls, url):
        with urllib.request.urlopen(url, timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        cls.series += [parse_series(line) for line in lines if not line.startswith("#")]

    @classmethod
    def start_router_of_an_api(cls, folder):
        """With keys and TLS, as beyond loopback; where its metrics are."""
        keys, ready = folder / "keys", folder / "api_router.json"
        for arguments in (["certs", "init", "--dir", folder / "api"],
                          ["certs", "issue", "--role", "router", "--dir", folder / "api"],
                          ["keys", "add", keys, "alice"]):
            subprocess.run([BIN / "baton", *arguments], check=True, capture_output=True, timeout=60)
        router = subprocess.Popen(
            [BIN / "baton-router", "--model", MODEL, "--prefill", "127.0.0.1:1", "--decode",
             "127.0.0.1:2", "--http-port", "0", "--grpc-port", "0", "--ready-file", ready,
             "--api-keys-file", keys, "--api-tls-dir", folder / "api" / "router"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        cls.addClassCleanup(router.wait, 10)
        cls.addClassCleanup(router.kill)
        await_true(ready.exists, START_LIMIT_S, "the router listens")
        return json.loads(ready.read_text())["metrics_url"]

    def check(self, query):
        """Each selector of the query finds a series; labels of the scrape are not the programs'."""
        chosen = list(selectors(query))
        self.assertTrue(chosen, query)
        for name, matchers in chosen:
            self.assertTrue(any(name == one and fits(labels, matchers)
                                for one, labels in self.series),
                            f"nothing exports {name} with {matchers}: {query}")

    def test_every_query_of_the_dashboard_finds_a_series(self):
        dashboard = json.loads((CHART / "files/dashboard.json").read_text())
        queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
        queries += [one["query"]["query"] for one in dashboard["templating"]["list"]
                    if one["type"] == "query"]
        self.assertGreater(len(queries), 25)
        for query in queries:
            with self.subTest(query):
                self.check(query)

    def test_every_alert_has_its_series_and_a_part_of_the_runbook(self):
        runbook = (ROOT / "deploy/RUNBOOK.md").read_text()
        self.assertLessEqual(runbook.count("\n"), 150)
        rules = load(CHART / "files/alerts.yaml")["groups"][0]["rules"]
        self.assertEqual({rule["alert"] for rule in rules},
                         set(re.findall(r"^## (Baton\w+)$", runbook, re.M)))
        for rule in rules:
            with self.subTest(rule["alert"]):
                self.check(rule["expr"])
                self.assertEqual(rule["annotations"]["runbook"],
                                 f"deploy/RUNBOOK.md#{rule['alert'].lower()}")

    def test_workers_are_scaled_by_series_that_exist(self):
        text = (CHART / "templates/autoscaling.yaml").read_text()
        names = set(re.findall(r"\bbaton_\w+", text))
        self.assertEqual(names, {"baton_requests_waiting", "baton_kv_cache_usage_ratio",
                                 "baton_prompt_backlog_seconds", "baton_queued_prompt_tokens",
                                 "baton_step_tokens_per_second"})
        for name in re.findall(r"^ +name: (baton_\w+)", text, re.M):  # Those of an adapter.
            self.check(name)
        found = 0
        for rendering in RENDERINGS.values():
            for scaler in objects(rendering, "ScaledObject"):
                for trigger in scaler["spec"]["triggers"]:
                    if "query" in trigger["metadata"]:
                        found += 1
                        self.check(trigger["metadata"]["query"])
        self.assertEqual(found, 3)

    def test_probes_ask_what_the_programs_answer(self):
        for _, labels, spec in pods(RENDERINGS["demo"]):
            role = labels["app.kubernetes.io/component"]
            if role == "test":
                continue
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                path = spec["containers"][0][probe]["httpGet"]["path"]
                with urllib.request.urlopen(self.urls[role] + path, timeout=60) as answer:
                    self.assertEqual(answer.status, 200)


LABEL = re.compile(r'(\w+)\s*(=~|!=|!~|=)\s*"((?:[^"\\]|\\.)*)"')
# Given by whoever scrapes.
SCRAPED = {"namespace", "pod", "job", "instance"}


def parse_series(line):
    name, _, rest = line.partition(" ")[0].partition("{")
    return name, {key: value for key, _, value in LABEL.findall(rest)}


def selectors(query):
    for match in re.finditer(r"\b(baton_\w+)(?:\{([^}]*)\})?", query):
        yield match.group(1), [one for one in LABEL.findall(match.group(2) or "")
                               if one[0] not in SCRAPED]


def fits(labels, matchers):
    """For what an event brings forth, `outcome`, a series of another value is enough."""
    for key, sign, value in matchers:
        if key not in labels:
            return False
        same = labels[key] == value if sign in ("=", "!=") else re.fullmatch(value, labels[key])
        if key not in ("outcome", "healthy") and bool(same) == sign.startswith("!"):
            return False
    return True


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
