#include "kernels/cuda/sample_parts.h"

#include "kernels/cuda/sample.h"

namespace baton::cuda {
namespace sample {

// The likeliest tokens, after bias, mask and penalties too. Makes the row's room ready.
__global__ void __launch_bounds__(kMaxThreads, 1)
    AdjustKernel(SampleArgs args, RowRoom* rooms, int parts) {
  auto& shared = SharedMemory<Shared>();
  const Part part(args, rooms, parts);
  const int threads = blockDim.x * parts;
  for (int bin = part.part * blockDim.x + threadIdx.x; bin < kBins; bin += threads) {
    part.room.bins[bin] = 0;
  }
  if (part.part == 0 && threadIdx.x == 0) part.room.num_listed = 0;
  const auto best_of = [&](const float* x) {
    Mass best = 0;
    part.ForEach(x, [&](int id, float logit) { best = max(best, PlaceOf(logit, id)); });
    return BlockMax(shared, best);
  };
  const Mass best_raw = best_of(part.raw);
  Mass best = best_raw;
  if (IsAdjusted(part.row)) {
    const int size = part.chunks.size;
    const Ids ids(min(part.first * size, args.vocab_size), min(part.end * size, args.vocab_size));
    best = best_of(Adjust(args, part.row, ids, part.raw, part.index));
  }
  if (threadIdx.x != 0) return;
  part.room.best_raw[part.part] = best_raw;
  part.room.best[part.part] = best;
}

// The row's bins grow by add(bins, logit) for each logit.
template <typename Add>
BATON_DEVICE void FillBins(Shared& shared, const Part& part, const Add& add) {
  for (int bin = threadIdx.x; bin < kBins; bin += blockDim.x) shared.bins.Set(bin, 0);
  __syncthreads();
  part.ForEach(part.x, [&](int, float logit) { add(shared.bins, logit); });
  __syncthreads();
  for (int bin = threadIdx.x; bin < kBins; bin += blockDim.x) {
    const Mass mass = shared.bins.Get(bin);
    if (mass != 0) atomicAdd(&part.room.bins[bin], mass);
  }
}

// What there is of each digit, or where nothing is cut off, in each chunk.
__global__ void __launch_bounds__(kMaxThreads, 1)
    WeighKernel(SampleArgs args, RowRoom* rooms, int parts) {
  auto& shared = SharedMemory<Shared>();
  const Part part(args, rooms, parts);
  const Likely likely(part, parts);
  if (likely.IsBad()) return;
  if (part.row.num_top >= 0) {
    Mass sum = 0;
    part.ForEach(part.raw, [&](int, float x) { sum += RawWeightOf(x, likely.max_raw); });
    sum = BlockSum(shared, sum);
    if (threadIdx.x == 0) part.room.raw_sums[part.part] = sum;
  }
  if (!likely.Draws()) return;
  if (part.CutsTopK()) {
    FillBins(shared, part, [&](Bins& bins, float logit) {
      const int digit = DigitOfLogit(logit, likely.max);
      if (digit > 0) bins.Count(digit);
    });
  } else if (part.row.top_p > 0) {
    FillBins(shared, part, [&](Bins& bins, float logit) {
      const Mass weight = likely.Weight(logit);
      if (weight > 0) bins.Add(DigitOfWeight(weight), weight);
    });
  } else {
    part.ForChunks([&](int chunk) {
      Mass sum = 0;
      part.chunks.ForChunk(part.x, chunk, [&](int, float x) { sum += likely.Weight(x); });
      sum = WarpSum(sum);
      if (threadIdx.x % 32 == 0) part.room.sums[chunk] = sum;
    });
  }
}

BATON_DEVICE void Append(Shared& shared, Mass entry) {
  const int at = atomicAdd(&shared.num_listed, 1);
  if (at < kMaxListed) shared.listed[at] = entry;
}

// The block's list goes to the end of the row's.
BATON_DEVICE void AppendList(Shared& shared, RowRoom& room) {
  __syncthreads();
  const int count = shared.num_listed;
  if (threadIdx.x == 0) shared.first_listed = count == 0 ? 0 : atomicAdd(&room.num_listed, count);
  __syncthreads();
  const int first = shared.first_listed;
  for (int i = threadIdx.x; i < count && first + i < kMaxListed; i += blockDim.x) {
    room.listed[first + i] = shared.listed[i];
  }
}

// All tokens of the edge's digit and above; none if there are more than have room.
BATON_DEVICE void ListTopK(Shared& shared, const Part& part, const Likely& likely) {
  Mass above = 0;
  const int edge = FindDigit(shared, part.row.top_k, above);
  if (edge == 0 || above + shared.bins.Get(edge) > kMaxListed) return;
  part.ForEach(part.x, [&](int id, float logit) {
    if (DigitOfLogit(logit, likely.max) >= edge) Append(shared, PlaceOf(logit, id));
  });
  AppendList(shared, part.room);
}

// The tokens of the edge's digit, and the sums of those above.
BATON_DEVICE void ListTopP(Shared& shared, const Part& part, const Likely& likely) {
  Mass own = 0, above = 0;
  for (int bin = threadIdx.x; bin < kBins; bin += blockDim.x) own += shared.bins.Get(bin);
  const Mass wanted = ShareOf(BlockSum(shared, own), part.row.top_p);
  const int edge = FindDigit(shared, wanted, above);
  // A weight of the edge's digit has at least (edge - 1) / 64 - 44, and half a unit of rounding.
  const float least_power = static_cast<float>(edge - 1) / 64.0f - 46.0f;
  if (part.part == 0 && threadIdx.x == 0) {
    part.room.wanted = wanted;
    part.room.above = above;
  }
  part.ForChunks([&](int chunk) {
    Mass sum = 0;
    part.chunks.ForChunk(part.x, chunk, [&](int id, float logit) {
      const Mass weight = likely.Weight(logit, least_power);
      const int digit = DigitOfWeight(weight);
      if (digit > edge) sum += weight;
      if (digit == edge) Append(shared, ByWeight(weight, id));
    });
    sum = WarpSum(sum);
    if (threadIdx.x % 32 == 0) part.room.sums[chunk] = sum;
  });
  AppendList(shared, part.room);
}

__global__ void __launch_bounds__(kMaxThreads, 1)
    ListKernel(SampleArgs args, RowRoom* rooms, int parts) {
  auto& shared = SharedMemory<Shared>();
  const Part part(args, rooms, parts);
  const Likely likely(part, parts);
  if (likely.IsBad() || !likely.Draws() || !part.Lists()) return;
  for (int bin = threadIdx.x; bin < kBins; bin += blockDim.x) {
    shared.bins.Set(bin, part.room.bins[bin]);
  }
  if (threadIdx.x == 0) shared.num_listed = 0;
  __syncthreads();
  if (part.CutsTopK()) {
    ListTopK(shared, part, likely);
  } else {
    ListTopP(shared, part, likely);
  }
}

// The thread's entry of the row's list.
BATON_DEVICE Mass Listed(const RowRoom& room) {
  return static_cast<int>(threadIdx.x) < room.num_listed ? room.listed[threadIdx.x] : 0;
}

// Where all tokens that may be drawn are listed.
BATON_DEVICE int DrawListed(Shared& shared, const Part& part, const Likely& likely) {
  const int count = part.room.num_listed;
  const Mass place = SortDown(shared, Listed(part.room), count);
  int id = 0;
  Mass weight = 0;
  if (static_cast<int>(threadIdx.x) < min(count, part.row.top_k)) {
    id = IdOf(place);
    weight = likely.Weight(part.x[id]);
  }
  if (part.row.top_p > 0) {
    const Mass wanted = ShareOf(BlockSum(shared, weight), part.row.top_p);
    const Mass entry = SortDown(shared, ByWeight(weight, id), count);
    id = IdByWeight(entry);
    weight = entry >> kIdBits;
    if (BlockScan(shared, weight).up_to - weight >= wanted) weight = 0;
  }
  const Mass entry = SortDown(shared, ById(weight, id), count);
  weight = entry & ((Mass{1} << kMassBits) - 1);
  const Prefix sums = BlockScan(shared, weight);
  const Mass target = __umul64hi(part.row.key, sums.all);
  if (sums.up_to > target && sums.up_to - weight <= target) {
    shared.id = kMaxVocabulary - 1 - static_cast<int>(entry >> kMassBits);
  }
  __syncthreads();
  return shared.id;
}

// Of the list, the likeliest that top_p still wants, whose weights are added to those of their
// chunks in shared.bins.
BATON_DEVICE Cut CutTopP(Shared& shared, const Part& part) {
  const RowRoom& room = part.room;
  const Mass entry = SortDown(shared, Listed(room), room.num_listed);
  const Mass weight = entry >> kIdBits, wanted = room.wanted - room.above;
  const int id = IdByWeight(entry);
  for (int bin = threadIdx.x; bin < kMaxChunks; bin += blockDim.x) shared.bins.Set(bin, 0);
  const Mass up_to = BlockScan(shared, weight).up_to, before = up_to - weight;
  if (weight > 0 && before < wanted) {
    shared.bins.Add(id / part.chunks.size, weight);
    if (up_to >= wanted) {
      shared.above = weight;
      shared.id = id;
    }
  }
  __syncthreads();
  return {shared.above, shared.id};
}

// The token where the draw falls: first its chunk, then its place there.
BATON_DEVICE int DrawChunk(Shared& shared, const Part& part, const Likely& likely) {
  const int at = threadIdx.x, size = part.chunks.size;
  Mass own = at < part.chunks.count ? part.room.sums[at] : 0;
  Cut cut;
  if (part.row.top_p > 0) {
    cut = CutTopP(shared, part);
    own += shared.bins.Get(at);
  }
  Prefix sums = BlockScan(shared, own);
  const Mass target = __umul64hi(part.row.key, sums.all);
  if (sums.up_to > target && sums.up_to - own <= target) {
    shared.digit = at;
    shared.above = target - (sums.up_to - own);
  }
  __syncthreads();
  const int chunk = shared.digit, id = chunk * size + at;
  const Mass left = shared.above;
  own = 0;
  if (at < size && id < part.chunks.vocab_size) {
    const Mass weight = likely.Weight(part.x[id]);
    own = cut.Keeps(weight, id) ? weight : 0;
  }
  sums = BlockScan(shared, own);
  if (sums.up_to > left && sums.up_to - own <= left) shared.id = id;
  __syncthreads();
  return shared.id;
}

BATON_DEVICE int DrawOfParts(Shared& shared, const Part& part, const Likely& likely) {
  const int listed = part.room.num_listed;
  if (part.Lists() && (listed == 0 || listed > kMaxListed)) {  // Too many alike.
    const int vocab_size = part.chunks.vocab_size;
    return Draw(shared, Ids(0, vocab_size), part.x, likely.max, vocab_size, part.row);
  }
  return part.CutsTopK() ? DrawListed(shared, part, likely) : DrawChunk(shared, part, likely);
}

// A block for each row.
__global__ void __launch_bounds__(kMaxThreads, 1)
    ChooseKernel(SampleArgs args, RowRoom* rooms, int parts) {
  auto& shared = SharedMemory<Shared>();
  const Part whole(args, rooms, 1);
  const Likely likely(whole, parts);
  SampleResult result;
  result.is_bad = likely.IsBad() ? 1 : 0;
  if (IsFinite(likely.max_raw) && whole.row.num_top >= 0) {
    const int lane = threadIdx.x % 32;
    WriteTop(shared, whole.chunks, whole.raw, min(whole.row.num_top, args.vocab_size),
             args.top, blockIdx.x);
    if (result.is_bad == 0) {
      result.max = likely.max_raw;
      result.sum = WarpSum(lane < parts ? whole.room.raw_sums[lane] : 0);
    }
  }
  if (result.is_bad == 0) {
    result.token = likely.Draws() ? DrawOfParts(shared, whole, likely) : likely.best;
    result.token_logit = whole.raw[result.token];
  }
  if (threadIdx.x == 0) args.results[blockIdx.x] = result;
}

}  // namespace sample

int64_t SampleScratchBytes(const SampleArgs& args) {
  return args.num_rows * static_cast<int64_t>(sizeof(sample::RowRoom));
}

cudaError_t SampleByParts(const SampleArgs& args, void* scratch, int parts, cudaStream_t stream) {
  if (args.num_rows == 0) return cudaSuccess;
  if (parts < 1 || parts > sample::kMaxParts || args.vocab_size < 1 ||
      args.vocab_size > kMaxVocabulary) {
    return cudaErrorInvalidValue;
  }
  auto* const rooms = static_cast<sample::RowRoom*>(scratch);
  const auto launch = [&](auto kernel, int64_t blocks, size_t shared_bytes) {
    return Launch(kernel, BlocksFor(blocks, 1), sample::kMaxThreads, shared_bytes, stream, args,
                  rooms, parts);
  };
  const int64_t blocks = args.num_rows * parts;
  cudaError_t error = launch(sample::AdjustKernel, blocks, sizeof(sample::Shared));
  if (error == cudaSuccess) error = launch(sample::WeighKernel, blocks, sizeof(sample::Shared));
  if (error == cudaSuccess) error = launch(sample::ListKernel, blocks, sizeof(sample::Shared));
  if (error != cudaSuccess) return error;
  return launch(sample::ChooseKernel, args.num_rows, sizeof(sample::Shared));
}

}  // namespace baton::cuda
