#include "kernels/emulation/warpgroup.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "kernels/emulation/block_runner.h"
#include "kernels/emulation/options.h"
#include "kernels/emulation/tensor_core.h"
#include "kernels/emulation/tensor_map.h"

namespace baton::emulation {

Architecture CurrentArchitecture();
const WgmmaSums& CurrentWgmmaSums();

namespace {

constexpr int kRows = 64, kMostColumns = 256, kDepth = 16;
constexpr int kTileRows = 64, kTileColumns = 64;  // Where the second operand lies by rows.
constexpr int kTileRowBytes = 128,
              kAtomBytes = 1024;  // Eight rows, after which the swizzle repeats.
constexpr float kPoison = std::bit_cast<float>(0xffffffffu);

struct ProductArguments {
  float* sums;
  bool adds;  // To what they hold.
  const void* a;
  HeldOperand held;  // In place of `a`, if it has registers.
  const void* b;
};

// The registers of a thread's row pair: of row lane / 4 and of the one eight below.
int RowOf(int lane, int i) { return lane / 4 + i / 2 % 2 * 8; }
int ColumnOf(int lane, int i) { return i / 4 * 8 + lane % 4 * 2 + i % 2; }

PendingSums* FindPending(Thread& thread, const float* registers) {
  auto& all = thread.products.sums;
  const auto found = std::ranges::find(all, registers, &PendingSums::registers);
  return found == all.end() ? nullptr : &*found;
}

const std::byte* ChunkOf(const void* tile, int row, int half) {
  const uintptr_t plain = reinterpret_cast<uintptr_t>(tile) + row * kTileRowBytes + half * 16;
  return reinterpret_cast<const std::byte*>(Swizzled(plain));
}

void CheckTile(const void* tile, const Site& site) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(tile);
  if (address % 16 == 0 && address % kAtomBytes < kTileRowBytes) return;
  Fail("a tile of wgmma at " + Show(site) +
       " does not begin in the first row after a multiple of " + std::to_string(kAtomBytes) + " B");
}

void CheckRows(const void* rows, const Site& site) {
  if (reinterpret_cast<uintptr_t>(rows) % kAtomBytes == 0) return;
  Fail("rows of wgmma at " + Show(site) + " do not begin at a multiple of " +
       std::to_string(kAtomBytes) + " B");
}

void ReadTile(bool is_bf16, const void* tile, int rows, float (*out)[kDepth]) {
  for (int row = 0; row < rows; ++row) {
    for (int half = 0; half < 2; ++half) {
      uint16_t bits[8];
      std::memcpy(bits, ChunkOf(tile, row, half), sizeof(bits));
      for (int i = 0; i < 8; ++i) out[row][8 * half + i] = HalfToFloat(is_bf16, bits[i]);
    }
  }
}

void ForgetFenced(Thread& thread, const void* registers) {
  std::erase_if(thread.products.fenced,
                [&](const FencedRegisters& fenced) { return fenced.registers == registers; });
}

void SetFenced(Thread& thread, const void* registers, int count) {
  std::vector<uint32_t> bits(count);
  std::memcpy(bits.data(), registers, count * sizeof(uint32_t));
  ForgetFenced(thread, registers);
  thread.products.fenced.push_back({registers, std::move(bits)});
}

void CheckFenced(const Thread& thread, const void* registers, const char* what, const Site& site) {
  const auto& all = thread.products.fenced;
  const auto found = std::ranges::find(all, registers, &FencedRegisters::registers);
  if (found == all.end()) {
    Fail(thread.Name() + ": a wgmma at " + Show(site) + " with no wgmma.fence for its " + what);
  }
  if (std::memcmp(registers, found->bits.data(), found->bits.size() * sizeof(uint32_t)) != 0) {
    Fail(thread.Name() + " has written " + what + " of the wgmma at " + Show(site) +
         " after its fence");
  }
}

using Chunks = std::vector<const std::byte*>;

Chunks ChunksOfTile(const void* tile, int first, int count) {
  Chunks chunks;
  for (int row = first; row < first + count; ++row) {
    for (int half = 0; half < 2; ++half) chunks.push_back(ChunkOf(tile, row, half));
  }
  return chunks;
}

// Of 16 rows of tiles that lie behind each other; row by row.
Chunks ChunksOfRows(const void* rows, int columns) {
  Chunks chunks;
  for (int row = 0; row < kDepth; ++row) {
    for (int column = 0; column < columns; column += 8) {
      chunks.push_back(
          ChunkOf(rows, row + column / kTileColumns * kTileRows, column % kTileColumns / 8));
    }
  }
  return chunks;
}

void ReadRows(bool is_bf16, const void* rows, int columns, float (*out)[kDepth]) {
  const Chunks chunks = ChunksOfRows(rows, columns);
  for (size_t i = 0; i < chunks.size(); ++i) {
    uint16_t bits[8];
    std::memcpy(bits, chunks[i], sizeof(bits));
    const int row = static_cast<int>(i) / (columns / 8),
              column = static_cast<int>(i) % (columns / 8) * 8;
    for (int j = 0; j < 8; ++j) out[column + j][row] = HalfToFloat(is_bf16, bits[j]);
  }
}

// A warp begins to read them.
void BeginReads(const Chunks& chunks, Thread& first_lane, const Thread& knows, const Site& site) {
  BlockRunner& runner = TheRunner();
  const Place place = PlaceOf(site);
  auto& reads = first_lane.products.reads;
  const int64_t group = first_lane.products.committed;
  if (reads.empty() || reads.back().group != group) reads.push_back({{}, group});
  for (const std::byte* const chunk : chunks) {
    reads.back().chunks.push_back(
        runner.shared().BeginProductRead(chunk, place, knows, runner.order()));
  }
}

PendingSums& TakeSums(Thread& thread, float* registers, int count, const Site& site) {
  AsyncProducts& products = thread.products;
  if (PendingSums* const pending = FindPending(thread, registers)) {
    pending->group = products.committed;
    return *pending;
  }
  CheckFenced(thread, registers, "sums", site);
  products.sums.push_back({registers, {registers, registers + count}, products.committed});
  std::fill_n(registers, count, kPoison);
  return products.sums.back();
}

// Its rows of the first operand, as mma.sync has them.
void TakeOperand(bool is_bf16, Thread& thread, const HeldOperand& from, float (*out)[kDepth],
                 const Site& site) {
  CheckFenced(thread, from.registers, "operand", site);
  thread.products.operands.push_back(
      {from.registers, {from.registers, from.registers + from.count}, thread.products.committed});
  const int lane = thread.lane();
  for (int i = 0; i < 4; ++i) {
    for (int half = 0; half < 2; ++half) {
      out[16 * (thread.warp() % 4) + lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8 + half] =
          HalfToFloat(is_bf16, from.registers[from.first + i] >> (16 * half));
    }
  }
}

// One warp's 16 rows.
void MultiplyWarp(bool is_bf16, const SumRule& rule, int columns, const float (*a)[kDepth],
                  const float (*b)[kDepth], std::vector<float>* (&sums)[32]) {
  TileProduct tile;
  std::memcpy(tile.a, a, sizeof(tile.a));
  for (int j0 = 0; j0 < columns; j0 += 8) {
    for (int k = 0; k < kDepth; ++k) {
      for (int j = 0; j < 8; ++j) tile.b[k][j] = b[j0 + j][k];
    }
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        tile.c[RowOf(lane, i)][ColumnOf(lane, i)] = (*sums[lane])[j0 / 2 + i];
      }
    }
    MultiplyTile(rule, is_bf16 ? -126 : -14, tile);
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        (*sums[lane])[j0 / 2 + i] = tile.c[RowOf(lane, i)][ColumnOf(lane, i)];
      }
    }
  }
}

}  // namespace

void FenceSums(float* sums, int count, const Site& site) {
  BlockRunner& runner = TheRunner();
  runner.Meet("wgmma.fence", ~0u, nullptr, site, [](const Meeting&) {});
  SetFenced(*runner.current(), sums, count);
}

void FenceOperands(const uint32_t* operands, int count) {
  SetFenced(*TheRunner().current(), operands, count);
}

namespace {

void MultiplyTogether(bool is_bf16, int columns, const ProductArguments& arguments,
                      const Site& site) {
  BlockRunner& runner = TheRunner();
  if (CurrentArchitecture() != Architecture::kHopper) Fail("wgmma on a GPU without it");
  ProductArguments mine = arguments;
  const void *a = mine.a, *b = mine.b;
  const bool is_held = a == nullptr;
  const SumRule rule =
      RuleOf(is_held ? CurrentWgmmaSums().of_registers : CurrentWgmmaSums().of_shared);
  runner.MeetWarpgroup("wgmma", &mine, site, [&](const WarpgroupMeeting& meeting) {
    if (!is_held) CheckTile(a, site);
    is_held ? CheckRows(b, site) : CheckTile(b, site);
    ++runner.statistics().products;
    float rows[kRows][kDepth], others[kMostColumns][kDepth];
    if (!is_held) ReadTile(is_bf16, a, kRows, rows);
    is_held ? ReadRows(is_bf16, b, columns, others) : ReadTile(is_bf16, b, columns, others);
    const int first = runner.current()->index / 128 * 128;
    for (int warp = 0; warp < 4; ++warp) {
      Thread& first_lane = runner.thread(first + 32 * warp);
      const Thread& last_lane = runner.thread(first + 32 * warp + 31);
      if (!is_held) BeginReads(ChunksOfTile(a, 16 * warp, 16), first_lane, last_lane, site);
      BeginReads(is_held ? ChunksOfRows(b, columns) : ChunksOfTile(b, 0, columns), first_lane,
                 last_lane, site);
      std::vector<float>* values[32];
      for (int lane = 0; lane < 32; ++lane) {
        const auto& from = *static_cast<ProductArguments*>(meeting.arguments[32 * warp + lane]);
        Thread& thread = runner.thread(first + 32 * warp + lane);
        if (from.a != a || from.b != b) {
          Fail(thread.Name() + " names other tiles of the wgmma at " + Show(site));
        }
        if (is_held) TakeOperand(is_bf16, thread, from.held, rows, site);
        values[lane] = &TakeSums(thread, from.sums, columns / 2, site).values;
        if (!from.adds) std::ranges::fill(*values[lane], 0.0f);
      }
      MultiplyWarp(is_bf16, rule, columns, rows + 16 * warp, others, values);
    }
  });
}

}  // namespace

void MultiplyAsync(bool is_bf16, int columns, float* sums, bool adds, const void* a, const void* b,
                   const Site& site) {
  MultiplyTogether(is_bf16, columns, {sums, adds, a, {}, b}, site);
}

void MultiplyAsync(bool is_bf16, int columns, float* sums, const HeldOperand& a, const void* b,
                   const Site& site) {
  MultiplyTogether(is_bf16, columns, {sums, true, nullptr, a, b}, site);
}

void CommitProducts(const Site& site) {
  BlockRunner& runner = TheRunner();
  runner.Meet("wgmma.commit_group", ~0u, nullptr, site, [](const Meeting&) {});
  ++runner.current()->products.committed;
}

void WaitProducts(int pending_groups, const Site& site) {
  BlockRunner& runner = TheRunner();
  runner.Meet("wgmma.wait_group", ~0u, nullptr, site, [&](const Meeting&) {
    const int first = runner.current()->warp() * 32;
    Thread& reader = runner.thread(first);
    const int64_t ended = reader.products.committed - pending_groups;
    // What wgmma has read is known to the whole warp.
    std::erase_if(reader.products.reads, [&](const PendingReads& reads) {
      if (reads.group >= ended) return false;
      for (const uint32_t chunk : reads.chunks) runner.shared().EndProductRead(chunk, reader);
      return true;
    });
    for (int lane = 1; lane < 32; ++lane) runner.thread(first + lane).warp_seen[0] = reader.clock;
    runner.Tick(reader);
  });
  Thread& thread = *runner.current();
  AsyncProducts& products = thread.products;
  const int64_t ended = products.committed - pending_groups;
  std::erase_if(products.sums, [&](const PendingSums& sums) {
    if (sums.group >= ended) return false;
    const bool is_untouched = std::ranges::all_of(
        sums.registers, sums.registers + sums.values.size(),
        [](float x) { return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(kPoison); });
    if (!is_untouched) {
      Fail(thread.Name() + " has written sums of a wgmma before it waited for it at " + Show(site));
    }
    std::ranges::copy(sums.values, sums.registers);
    ForgetFenced(thread, sums.registers);
    return true;
  });
  std::erase_if(products.operands, [&](const PendingOperands& operands) {
    if (operands.group >= ended) return false;
    if (!std::ranges::equal(operands.values,
                            std::span(operands.registers, operands.values.size()))) {
      Fail(thread.Name() + " has written an operand of a wgmma before it waited for it at " +
           Show(site));
    }
    ForgetFenced(thread, operands.registers);
    return true;
  });
}

void FenceProxy() { TheRunner().FenceProxy(); }

}  // namespace baton::emulation
