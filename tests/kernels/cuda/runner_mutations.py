"""Of mutations.py: the runner, which is the same for all devices. tests/planted has more of it."""
RUNNER_TEST = "cuda_runner_test"

MUTATIONS = [
    ("common/model/transformer_runner.cc", RUNNER_TEST, "*", "moved blocks of K alone",
     "i < from.planes().size(); ++i", "i < from.planes().size(); i += 2"),
    ("common/model/step_metadata.cc", RUNNER_TEST, "*", "block tables stay on the host",
     "places_.block_table + (table + kUnit - 1) / kUnit * kUnit", "places_.block_table"),
    ("common/model/cache_planes.cc", RUNNER_TEST, "*", "blocks are longer than they are",
     "cache.BlockStride(layer, plane) / SizeOf(group.dtype)",
     "cache.BlockStride(layer, plane) / SizeOf(group.dtype) + 8"),
    ("common/model/cache_planes.cc", RUNNER_TEST, "*", "V's plane is K's",
     "cache.Plane(layer, plane)", "cache.Plane(layer, KvPlane::kK)"),
]
