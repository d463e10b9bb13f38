"""Of mutations.py: the runner, which is the same for all devices. tests/planted has more of it."""
RUNNER_TEST = "cuda_runner_test"
RUNNER, GRAPHS = "common/model/transformer_runner.cc", "common/model/step_graphs.cc"
METADATA, PLANES = "common/model/step_metadata.cc", "common/model/cache_planes.cc"
NORMS = "common/model/transformer_norms.cc"

MUTATIONS = [
    (RUNNER, RUNNER_TEST, "*", "moved blocks of K alone", "{KvPlane::kK, KvPlane::kV}",
     "{KvPlane::kK, KvPlane::kK}"),
    (RUNNER, RUNNER_TEST, "*", "kernels do not wait for what moves in",
     "return device_.After(Lane::kCompute, mark);", "return mark.number > 0 ? absl::OkStatus() : "
     "absl::InternalError(\"\");"),
    (RUNNER, RUNNER_TEST, "*", "blocks come from where they go",
     "to.HeadBlockOffset(layer, plane, move.destination, 0)",
     "to.HeadBlockOffset(layer, plane, move.source, 0)"),
    (GRAPHS, RUNNER_TEST, "*", "prefills by graphs of decode", "row.tokens.size() == 1 && ", ""),
    (METADATA, RUNNER_TEST, "*", "block tables stay on the host",
     "places_.block_table + (table + kUnit - 1) / kUnit * kUnit", "places_.block_table"),
    (PLANES, RUNNER_TEST, "*", "V has the width of its block's K", "block_size * dim};",
     "block_size * (dim + 8)};"),
    (PLANES, RUNNER_TEST, "*", "V's plane is K's", "cache.Plane(layer, plane)",
     "cache.Plane(layer, KvPlane::kK)"),
    (NORMS, RUNNER_TEST, "*", "norms add nothing to the residual",
     "residual = add_delta ? residual_in_use_.f32() : nullptr", "residual = nullptr"),
]
