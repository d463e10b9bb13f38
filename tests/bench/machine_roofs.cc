#include "tests/bench/machine_roofs.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "common/base/check.h"
#include "kernels/cpu/select_kernel_set.h"

namespace baton::bench {
namespace {

constexpr int64_t kTurns = 4'000'000;
constexpr int64_t kChains = 12;  // More than latency times rate asks for.
constexpr size_t kBufferBytes = size_t{512} << 20;
// Weights lie in such pages too.
constexpr size_t kHugePage = size_t{2} << 20;

#if defined(__x86_64__)
#define BATON_TWELVE(instruction, width)                                                           \
  instruction                                                                                      \
      " %%" width "14, %%" width "15, %%" width "0\n" instruction " %%" width "14, %%" width       \
      "15, %%" width "1\n" instruction " %%" width "14, %%" width "15, %%" width "2\n" instruction \
      " %%" width "14, %%" width "15, %%" width "3\n" instruction " %%" width "14, %%" width       \
      "15, %%" width "4\n" instruction " %%" width "14, %%" width "15, %%" width "5\n" instruction \
      " %%" width "14, %%" width "15, %%" width "6\n" instruction " %%" width "14, %%" width       \
      "15, %%" width "7\n" instruction " %%" width "14, %%" width "15, %%" width "8\n" instruction \
      " %%" width "14, %%" width "15, %%" width "9\n" instruction " %%" width "14, %%" width       \
      "15, %%" width "10\n" instruction " %%" width "14, %%" width "15, %%" width "11\n"
// Zeroes are as fast as other numbers; vzeroall clears the lower halves' dependencies.
#define BATON_LOOP(instruction, width)                                                          \
  asm volatile("vzeroall\n1:\n" BATON_TWELVE(instruction, width) "dec %0\njnz 1b\nvzeroupper\n" \
               : "+r"(turns)                                                                    \
               :                                                                                \
               : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",  \
                 "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15")

#define BATON_FOUR_TILES               \
  "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n" \
  "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n" \
  "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n" \
  "tdpbf16ps %%tmm7, %%tmm5, %%tmm3\n"

// Products of whole tiles, 16 x 32 by 32 x 16.
void LoopOfTiles(int64_t turns) {
  struct alignas(64) {
    uint8_t palette = 1;
    uint8_t reserved[15] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  asm volatile("ldtilecfg %1\n1:\n" BATON_FOUR_TILES BATON_FOUR_TILES BATON_FOUR_TILES
               "dec %0\njnz 1b\ntilerelease\n"
               : "+r"(turns)
               : "m"(config)
               : "cc");
}

void Loop(Instruction instruction, int64_t turns) {
  switch (instruction) {
    case Instruction::kFmaAvx2:
      BATON_LOOP("vfmadd231ps", "ymm");
      return;
    case Instruction::kFmaAvx512:
      BATON_LOOP("vfmadd231ps", "zmm");
      return;
    case Instruction::kBf16Dot:
      BATON_LOOP("vdpbf16ps", "zmm");
      return;
    case Instruction::kAmxBf16:
      LoopOfTiles(turns);
      return;
    case Instruction::kVnni:
      BATON_LOOP("vpdpbusd", "zmm");
      return;
  }
}

// Sums of what lies at [from, from + size): only wide loads keep enough lines on their way.
__attribute__((target("avx512f"))) uint64_t ReadWide(const uint64_t* from, int64_t size) {
  __m512i sum[4] = {};
  for (int64_t i = 0; i < size; i += 32) {
    for (int64_t j = 0; j < 4; ++j) {
      sum[j] = _mm512_xor_si512(sum[j], _mm512_loadu_si512(from + i + j * 8));
    }
  }
  uint64_t lanes[32];
  std::memcpy(lanes, sum, sizeof(lanes));
  return std::accumulate(lanes, lanes + 32, uint64_t{0});
}
#else
void Loop(Instruction, int64_t) {}
uint64_t ReadWide(const uint64_t*, int64_t) { return 0; }
#endif

uint64_t ReadNarrow(const uint64_t* from, int64_t size) {
  uint64_t sum[16] = {};
  for (int64_t i = 0; i < size; i += 16) {
    for (int64_t j = 0; j < 16; ++j) sum[j] ^= from[i + j];
  }
  return std::accumulate(sum, sum + 16, uint64_t{0});
}

int64_t OpsOf(Instruction instruction) {
  switch (instruction) {
    case Instruction::kFmaAvx2:
      return 16;
    case Instruction::kFmaAvx512:
      return 32;
    case Instruction::kBf16Dot:
      return 64;
    case Instruction::kAmxBf16:
      return 2 * 16 * 16 * 32;
    case Instruction::kVnni:
      return 128;
  }
  return 0;
}

}  // namespace

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool Runs(Instruction instruction) {
#if defined(__x86_64__)
  switch (instruction) {
    case Instruction::kFmaAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Instruction::kFmaAvx512:
      return __builtin_cpu_supports("avx512f");
    case Instruction::kBf16Dot:
      return __builtin_cpu_supports("avx512bf16");
    case Instruction::kAmxBf16:
      return SelectKernelSet("x86_64_amx").ok();  // Also asks the system for the tiles.
    case Instruction::kVnni:
      return __builtin_cpu_supports("avx512vnni");
  }
#endif
  return static_cast<int>(instruction) < 0;
}

const char* NameOf(Instruction instruction) {
  switch (instruction) {
    case Instruction::kFmaAvx2:
      return "fma f32, AVX2";
    case Instruction::kFmaAvx512:
      return "fma f32, AVX-512";
    case Instruction::kBf16Dot:
      return "bf16 dot, AVX-512";
    case Instruction::kAmxBf16:
      return "bf16 dot, AMX";
    case Instruction::kVnni:
      return "int8 dot, AVX-512 VNNI";
  }
  return "";
}

Instruction ProductInstruction(const std::string& kernel_set, bool bf16) {
  const auto set = SelectKernelSet(kernel_set);
  BATON_CHECK(set.ok());
  const std::string_view name = (*set)->name;
  if (bf16 && name == "x86_64_amx") return Instruction::kAmxBf16;
  if (bf16 && name == "x86_64_v4_bf16") return Instruction::kBf16Dot;
  // The portable set is compared with what the compiler may not use in it.
  const bool narrow = name == "x86_64_v3" || name == "portable";
  return narrow ? Instruction::kFmaAvx2 : Instruction::kFmaAvx512;
}

MachineRoofs::MachineRoofs(ThreadPool* pool, const std::string& kernel_set)
    : pool_(pool),
      kernel_set_(kernel_set),
      buffer_(static_cast<uint64_t*>(std::aligned_alloc(kHugePage, kBufferBytes))),
      sums_(pool->num_threads()) {
  BATON_CHECK(buffer_ != nullptr);
  madvise(buffer_.get(), kBufferBytes, MADV_HUGEPAGE);
  std::memset(buffer_.get(), 1, kBufferBytes);
}

double MachineRoofs::GigaOps(Instruction instruction) {
  const int64_t threads = pool_->num_threads();
  // Tiles take many cycles each.
  const int64_t turns = instruction == Instruction::kAmxBf16 ? kTurns / 16 : kTurns;
  const double start = Now();
  pool_->ParallelFor(threads, [&](int64_t, int) { Loop(instruction, turns); });
  const double ops = static_cast<double>(threads * turns * kChains * OpsOf(instruction));
  return ops / (Now() - start) * 1e-9;
}

double MachineRoofs::ReadGigabytes() {
  // Small pieces in the order that threads take them even out cores of different speed.
  constexpr int64_t kPieces = 256;
  const int64_t piece = static_cast<int64_t>(kBufferBytes / 8) / kPieces;
  const bool wide = Runs(Instruction::kFmaAvx512);
  const double start = Now();
  pool_->ParallelFor(kPieces, [&](int64_t task, int thread) {
    const uint64_t* from = buffer_.get() + task * piece;
    sums_[thread] += wide ? ReadWide(from, piece) : ReadNarrow(from, piece);
  });
  return static_cast<double>(kBufferBytes) / (Now() - start) * 1e-9;
}

double MachineRoofs::ProductGigaOps(bool bf16) {
  const Instruction instruction = ProductInstruction(kernel_set_, bf16);
  return Runs(instruction) ? GigaOps(instruction) : 0;
}

}  // namespace baton::bench
