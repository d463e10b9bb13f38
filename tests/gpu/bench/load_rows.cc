#include "tests/gpu/bench/load_rows.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/machine_share.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/checkpoint/model_files.h"
#include "common/model/packed_model.h"
#include "kernels/cuda/cuda_weights.h"
#include "kernels/cuda/weight_rows.h"
#include "kernels/cuda/weights.h"
#include "tests/gpu/bench/gpu_bench.h"

namespace baton::bench {
namespace {

// Beside the model itself.
constexpr int64_t kSpareDisk = int64_t{1} << 30;

int64_t MatrixBytes(const ModelFiles& model) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : model.files.tensors()) {
    if (tensor.shape.size() == 2) bytes += std::ssize(tensor.bytes);
  }
  return bytes;
}

int64_t BytesOf(const ModelShape& s) {
  const int64_t kv = s.hidden / s.heads * s.kv_heads;
  const int64_t layer = 2 * s.hidden * s.hidden + 2 * kv * s.hidden + 3 * s.hidden * s.ffn;
  return 2 * (s.layers * layer + 2 * s.vocab * s.hidden);
}

std::string Named(const ModelShape& shape, const char* what, int threads) {
  return absl::StrCat("load ", shape.name, " ", what, ", ", threads, " threads");
}

Row Throughput(std::string name, int64_t bytes, double seconds) {
  const auto amount = static_cast<double>(bytes);
  return {.name = std::move(name),
          .value = amount * 1e-9 / seconds,
          .unit = "GB/s",
          .seconds = seconds,
          .bytes = amount};
}

// As WeightLoader fills its chunks, one after the other, with nobody who takes them.
absl::Status FillChunks(const ModelFiles& model, ThreadPool& threads) {
  constexpr int64_t kChunk = cuda::WeightLoader::kChunkBytes;
  std::vector<std::byte> chunks(4 * kChunk);
  int64_t next = 0;
  for (const auto& [name, tensor] : model.files.tensors()) {
    if (tensor.shape.size() != 2) continue;
    const int64_t n = tensor.shape[0], k = tensor.shape[1];
    const WeightRows part{tensor.bytes.data(), DType::kBF16, n};
    const int64_t rows = std::max(int64_t{1}, kChunk / (2 * cuda::RowStride(k)));
    for (int64_t row = 0; row < n; row += rows, ++next) {
      const cuda::WeightRowsArgs args{.part = part,
                                      .first = row,
                                      .count = std::min(rows, n - row),
                                      .k = k,
                                      .threads = &threads};
      RETURN_IF_ERROR(cuda::CopyWeightRows(args, chunks.data() + next % 4 * kChunk));
    }
    model.files.Release(tensor.bytes);
  }
  return absl::OkStatus();
}

absl::Status AppendHostRows(const ModelShape& shape, const ModelFiles& model, int num_threads,
                            std::vector<Row>& rows) {
  const int64_t bytes = MatrixBytes(model);
  Time begin = SteadyNow();
  RETURN_IF_ERROR(model.files.Digest(num_threads).status());
  rows.push_back(Throughput(Named(shape, "hash of weights", num_threads), bytes,
                            ToSeconds(SteadyNow() - begin)));
  ThreadPool threads(num_threads);
  begin = SteadyNow();
  RETURN_IF_ERROR(FillChunks(model, threads));
  rows.push_back(Throughput(Named(shape, "rows in host memory", num_threads), bytes,
                            ToSeconds(SteadyNow() - begin)));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Row>> HostRowsOf(const ModelShape& shape, const std::string& dir) {
  ASSIGN_OR_RETURN(const ModelFiles model, LoadModelFiles(dir));
  const int cores = ReadMachineShare().cores();
  std::vector<Row> rows;
  RETURN_IF_ERROR(AppendHostRows(shape, model, 1, rows));
  if (cores > 1) RETURN_IF_ERROR(AppendHostRows(shape, model, cores, rows));
  return rows;
}

struct LoadSeconds {
  int64_t bytes = 0;
  double hash = 0;
  double pack = 0;
};

// As a worker does.
absl::StatusOr<LoadSeconds> LoadOnce(Device& device, const std::string& dir, int num_threads) {
  const Time begin = SteadyNow();
  ASSIGN_OR_RETURN(const ModelFiles model, LoadModelFiles(dir, {.num_threads = num_threads}));
  const Time hashed = SteadyNow();
  ThreadPool threads(num_threads);
  Device* const devices[] = {&device};
  ASSIGN_OR_RETURN(
      const PackedRanks ranks,
      PackModel(model.config, model.weights, DType::kBF16, devices,
                {.release = [&](auto bytes) { model.files.Release(bytes); }, .threads = &threads}));
  RETURN_IF_ERROR(device.Synchronize());
  return LoadSeconds{MatrixBytes(model), ToSeconds(hashed - begin),
                     ToSeconds(SteadyNow() - hashed)};
}

// The one in the middle of several.
absl::StatusOr<LoadSeconds> LoadSeveralTimes(Device& device, const std::string& dir,
                                             int num_threads) {
  std::array<LoadSeconds, 3> all;
  for (LoadSeconds& one : all) {
    ASSIGN_OR_RETURN(one, LoadOnce(device, dir, num_threads));
  }
  std::ranges::sort(all, {}, [](const LoadSeconds& s) { return s.hash + s.pack; });
  return all[1];
}

}  // namespace

absl::StatusOr<std::vector<Row>> HostLoadRows(const ModelShape& shape) {
  const ModelsFolder folder("");
  ASSIGN_OR_RETURN(const std::string dir, MakeRandomModel(shape, folder.dir()));
  return HostRowsOf(shape, dir);
}

// Of a file that has just been written, so that the page cache has it.
absl::Status MeasureLoad(GpuBench& bench) {
  const ModelShape& shape = bench.quick() ? kQuick : k1B;
  const std::string name = absl::StrCat("load ", shape.name);
  if (!bench.IsTimeFor(name)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const bool has_room, bench.HasRoomFor(BytesOf(shape)));
  std::error_code error;
  const auto disk = std::filesystem::space(std::filesystem::temp_directory_path(), error);
  if (!has_room || error || static_cast<int64_t>(disk.available) < BytesOf(shape) + kSpareDisk) {
    bench.LeaveOut(name, "no room on the GPU, or for its file");
    return absl::OkStatus();
  }
  const ModelsFolder folder("");
  ASSIGN_OR_RETURN(const std::string dir, MakeRandomModel(shape, folder.dir()));
  ASSIGN_OR_RETURN(const std::vector<Row> on_host, HostRowsOf(shape, dir));
  for (const Row& row : on_host) bench.Say(row);
  const int cores = ReadMachineShare().cores();
  ASSIGN_OR_RETURN(const LoadSeconds load, LoadSeveralTimes(bench.device(), dir, cores));
  Row packed = Throughput(Named(shape, "to the GPU", cores), load.bytes, load.pack);
  Row all = Throughput(Named(shape, "to the GPU with its hash", cores), load.bytes,
                       load.hash + load.pack);
  for (Row* const row : {&packed, &all}) {
    row->roof = bench.roofs().to_device * 1e-9;
    row->roof_name = "pinned to device";
    bench.Say(*row);
  }
  return absl::OkStatus();
}

}  // namespace baton::bench
