"""Of mutations.py: the runner, which is the same for all devices. tests/planted has more of it."""
RUNNER_TEST = "cuda_runner_test"

MUTATIONS = [
    ("common/model/transformer_runner.cc", RUNNER_TEST, "*FollowUp*", "results of the step before are written over",
     "const bool is_other = running_.results == parts_.follow_up_results.get();", "const bool is_other = true;"),
    ("common/model/transformer_runner.cc", RUNNER_TEST, "*FollowUp*", "no token is taken",
     "RETURN_IF_ERROR(pass.results->TakeTokens(before, metadata_.tokens_on_device()));", ""),
    ("common/model/step_results.cc", RUNNER_TEST, "*FollowUp*", "penalties do not know the token",
     ".count = std::ssize(on_device_.lists.taken)", ".count = 0"),
    ("common/model/step_results.cc", RUNNER_TEST, "*FollowUp*", "a step is followed whose tokens the host samples",
     "on_device_.sampled.size() == results_.size() &&", ""),
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
