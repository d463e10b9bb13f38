"""Who may connect to whom: what the NetworkPolicies of a rendering allow, and what the programs'
options need. An edge is (from, to, port); where a port is a range, its first and last."""

# Pods of the namespace that are not the chart's stand for clients and for Prometheus.
STRANGER = "stranger"
DNS = ("anywhere", "dns")
DNS_PORTS = {(53, "UDP"), (53, "TCP"), (5353, "UDP"), (5353, "TCP")}


def selects(selector, labels):
    for key, value in selector.get("matchLabels", {}).items():
        if labels.get(key) != value:
            return False
    for rule in selector.get("matchExpressions", []):
        assert rule["operator"] == "In", rule
        if labels.get(rule["key"]) not in rule["values"]:
            return False
    return True


def ports_of(rule):
    """None: all."""
    if "ports" not in rule:
        return None
    return {(port["port"], port.get("endPort", port["port"])) for port in rule["ports"]
            if port.get("protocol", "TCP") == "TCP"}


def sides(policies, pods, direction, key):
    """{pod: [(peers or None for all, ports or None for all)]} of pods that a policy closes."""
    made = {}
    for name, labels in pods.items():
        closed = [policy["spec"] for policy in policies
                  if direction in policy["spec"]["policyTypes"]
                  and selects(policy["spec"]["podSelector"], labels)]
        if not closed:
            continue
        rules = [rule for spec in closed for rule in spec.get(direction.lower(), [])]
        made[name] = [([peer for peer in rule[key]] if key in rule else None, ports_of(rule))
                      for rule in rules]
    return made


def peer_is(peer, labels, is_stranger):
    if "podSelector" in peer and "namespaceSelector" not in peer:
        return selects(peer["podSelector"], labels)
    return is_stranger  # Another namespace or an address: the value's own.


def crossing(one, other):
    """The ports that both sides allow; (1, 65535) where both allow all."""
    if one is None and other is None:
        return {(1, 65535)}
    if one is None or other is None:
        return one or other
    return one & other


def widest(edges):
    """Where all ports are open, no other edge says more."""
    return {edge for edge in edges if edge[2:] == (1, 65535) or (*edge[:2], 1, 65535) not in edges}


def allowed(rendering, pods):
    labels = {all_labels["app.kubernetes.io/component"]: all_labels for _, all_labels, _ in pods}
    # The release's labels, on pods that the operator makes.
    for role in ("admin", "unknown"):
        labels[role] = {**next(iter(labels.values())), "app.kubernetes.io/component": role}
    roles = set(labels)
    labels[STRANGER] = {}
    policies = [one for one in rendering if one["kind"] == "NetworkPolicy"]
    into = sides(policies, labels, "Ingress", "from")
    out_of = sides(policies, labels, "Egress", "to")
    assert roles <= into.keys() and roles <= out_of.keys(), "a pod is open"
    edges = set()
    for source in labels:
        leaving = [(None, None)] if source == STRANGER else out_of[source]
        for target in roles:
            for to, out_ports in leaving:
                if to is not None and not any(peer_is(p, labels[target], False) for p in to):
                    continue
                for of, in_ports in into[target]:
                    if not any(peer_is(p, labels[source], source == STRANGER) for p in of):
                        continue
                    ports = crossing(out_ports, in_ports)
                    edges |= {(source, target, *port) for port in ports}
    for source in roles:
        for to, _ in out_of[source]:
            if to is None:
                edges.add((source, *DNS))
    return widest(edges)


def flag(arguments, name):
    return next(word.partition("=")[2] for word in arguments if word.startswith(name + "="))


def needed(arguments, values):
    """`arguments`: those of each role's program."""
    router = arguments["router"]
    edges = set()
    api = [int(flag(router, "--http-port")), int(flag(router, "--grpc-port"))]
    # `helm test` has no client that speaks TLS.
    asking = {STRANGER} if values["apiTls"]["existingSecret"] else {STRANGER, "test"}
    edges |= {(source, "router", port, port) for source in asking for port in api}
    edges.add((STRANGER, "router", *2 * [int(flag(router, "--ops-port"))]))
    edges.add(("admin", "router", *2 * [int(flag(router, "--admin-port"))]))
    for role in ("prefill", "decode"):
        control = int(flag(router, f"--{role}").rpartition(":")[2])
        edges |= {(source, role, control, control) for source in ("router", "admin")}
        edges.add((STRANGER, role, *2 * [int(flag(arguments[role], "--metrics-port"))]))
    data = int(flag(arguments["decode"], "--data-port"))
    edges.add(("prefill", "decode", data, data + int(flag(arguments["decode"], "--tp")) - 1))
    # NCCL chooses its ports itself. Beside TLS it takes part only if it is asked for.
    may = {"nccl"} | ({"auto"} if flag(arguments["prefill"], "--kv-security") != "tls" else set())
    on_gpus = all(flag(arguments[role], "--device") == "cuda" for role in ("prefill", "decode"))
    if on_gpus and flag(arguments["prefill"], "--kv-transport") in may:
        edges |= {("prefill", "decode", 1, 65535), ("decode", "prefill", 1, 65535)}
    resolving = {"router", "admin"} | asking - {STRANGER}
    if values["model"]["initContainer"]:
        resolving |= {"prefill", "decode", "unknown"}
    return widest(edges | {(role, *DNS) for role in resolving})
