#include "kernels/emulation/intrinsics.h"

#include <bit>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/emulation/block_runner.h"
#include "kernels/emulation/tensor_core.h"

namespace baton::emulation {

Architecture CurrentArchitecture();

const Position& CurrentPosition() { return *TheRunner().current()->position; }

void* SharedMemoryOf(size_t bytes, const Site& site) {
  SharedMemory& shared = TheRunner().shared();
  if (bytes > shared.bytes()) {
    Fail("the kernel uses " + std::to_string(bytes) + " B of shared memory at " + Show(site) +
         ", was launched with " + std::to_string(shared.bytes()));
  }
  return shared.data();
}

void SyncThreads(const Site& site) { TheRunner().SyncThreads(site); }

void SyncWarp(uint32_t mask, const Site& site) {
  BlockRunner& runner = TheRunner();
  runner.Meet("__syncwarp", mask, nullptr, site, [&](const Meeting& meeting) {
    const int first = runner.current()->warp() * 32;
    uint32_t clocks[32];
    ActorClocks seen;
    for (int lane = 0; lane < 32; ++lane) {
      if ((meeting.mask >> lane & 1) == 0) continue;
      const Thread& thread = runner.thread(first + lane);
      clocks[lane] = thread.clock;
      if (!thread.seen.empty()) thread.Tell(seen);
    }
    for (int to = 0; to < 32; ++to) {
      if ((meeting.mask >> to & 1) == 0) continue;
      Thread& thread = runner.thread(first + to);
      for (int from = 0; from < 32; ++from) {
        if ((meeting.mask >> from & 1) != 0) thread.warp_seen[from] = clocks[from];
      }
      if (!seen.empty()) thread.Learn(seen);
      runner.Tick(thread);
    }
  });
}

void ThreadFence() { TheRunner().ThreadFence(); }

namespace {

struct ShuffleArgument {
  uint64_t in;
  uint64_t out;
  int argument;
};

int SourceLane(ShuffleKind kind, int lane, int argument, int first, int width) {
  switch (kind) {
    case ShuffleKind::kIndex:
      return first + (argument & (width - 1));
    case ShuffleKind::kUp:
      return lane - argument;
    case ShuffleKind::kDown:
      return lane + argument;
    case ShuffleKind::kXor:
      break;
  }
  return lane ^ argument;
}

}  // namespace

uint64_t Shuffle(ShuffleKind kind, uint32_t mask, uint64_t value, int argument, int width,
                 const Site& site) {
  ShuffleArgument mine{value, value, argument};
  TheRunner().Meet("a shuffle", mask, &mine, site, [&](const Meeting& meeting) {
    for (int lane = 0; lane < 32; ++lane) {
      if ((meeting.mask >> lane & 1) == 0) continue;
      auto& to = meeting.Of<ShuffleArgument>(lane);
      const int first = lane / width * width;
      const int source = SourceLane(kind, lane, to.argument, first, width);
      if (source < first || source >= first + width) continue;
      if ((meeting.mask >> source & 1) == 0) {
        Fail("lane " + std::to_string(lane) + " shuffles from lane " + std::to_string(source) +
             ", which is not in the mask, at " + Show(meeting.site));
      }
      to.out = meeting.Of<ShuffleArgument>(source).in;
    }
  });
  return mine.out;
}

uint32_t Ballot(uint32_t mask, bool predicate, const Site& site) {
  std::pair<bool, uint32_t> mine{predicate, 0};
  TheRunner().Meet("a vote", mask, &mine, site, [](const Meeting& meeting) {
    uint32_t votes = 0;
    for (int lane = 0; lane < 32; ++lane) {
      if ((meeting.mask >> lane & 1) == 0) continue;
      votes |= static_cast<uint32_t>(meeting.Of<std::pair<bool, uint32_t>>(lane).first) << lane;
    }
    for (int lane = 0; lane < 32; ++lane) {
      if ((meeting.mask >> lane & 1) == 0) continue;
      meeting.Of<std::pair<bool, uint32_t>>(lane).second = votes;
    }
  });
  return mine.second;
}

void CheckAtomic(void* address, size_t size, const Site& site) {
  TheRunner().OnAccess(Access::kAtomic, address, size, PlaceOf(site));
}

namespace {

struct LoadArgument {
  uint32_t (*out)[4];
  const void* row;
};

struct ProductArgument {
  float (*c)[4];
  const uint32_t (*a)[4];
  uint32_t b[2];
};

}  // namespace

void LoadMatrices(uint32_t (&out)[4], const void* row, bool transposed, const Site& site) {
  LoadArgument mine{&out, row};
  BlockRunner& runner = TheRunner();
  runner.Meet("ldmatrix", ~0u, &mine, site, [&](const Meeting& meeting) {
    const int first = runner.current()->warp() * 32;
    uint16_t rows[32][8];
    for (int lane = 0; lane < 32; ++lane) {
      const void* from = meeting.Of<LoadArgument>(lane).row;
      runner.shared().Check(Access::kRead, from, 16, PlaceOf(site), runner.thread(first + lane),
                            runner.order());
      std::memcpy(rows[lane], from, 16);
    }
    for (int lane = 0; lane < 32; ++lane) {
      for (int j = 0; j < 4; ++j) {
        const int pair = lane % 4 * 2, row = lane / 4;
        const uint32_t low = transposed ? rows[8 * j + pair][row] : rows[8 * j + row][pair];
        const uint32_t high =
            transposed ? rows[8 * j + pair + 1][row] : rows[8 * j + row][pair + 1];
        (*meeting.Of<LoadArgument>(lane).out)[j] = low | high << 16;
      }
    }
  });
}

void MultiplyAdd(bool is_bf16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                 const Site& site) {
  ProductArgument mine{&c, &a, {b0, b1}};
  TheRunner().Meet("mma", ~0u, &mine, site, [&](const Meeting& meeting) {
    ++TheRunner().statistics().products;
    TileProduct tile;
    // The fragments of the PTX manual: lane / 4 is a row of a and c and a column of b.
    const auto c_row = [](int lane, int i) { return lane / 4 + i / 2 * 8; };
    const auto c_column = [](int lane, int i) { return lane % 4 * 2 + i % 2; };
    for (int lane = 0; lane < 32; ++lane) {
      const auto& from = meeting.Of<ProductArgument>(lane);
      const int group = lane / 4, pair = lane % 4 * 2;
      for (int half = 0; half < 2; ++half) {
        for (int i = 0; i < 4; ++i) {
          tile.a[group + i % 2 * 8][pair + i / 2 * 8 + half] =
              HalfToFloat(is_bf16, (*from.a)[i] >> (16 * half));
        }
        for (int i = 0; i < 2; ++i) {
          tile.b[pair + i * 8 + half][group] = HalfToFloat(is_bf16, from.b[i] >> (16 * half));
        }
      }
      for (int i = 0; i < 4; ++i) tile.c[c_row(lane, i)][c_column(lane, i)] = (*from.c)[i];
    }
    MultiplyTile(CurrentArchitecture(), is_bf16 ? -126 : -14, tile);
    for (int lane = 0; lane < 32; ++lane) {
      float(&to)[4] = *meeting.Of<ProductArgument>(lane).c;
      for (int i = 0; i < 4; ++i) to[i] = tile.c[c_row(lane, i)][c_column(lane, i)];
    }
  });
}

void CopyAsync(void* to, const void* from, bool live, const Site& site) {
  BlockRunner& runner = TheRunner();
  Thread& thread = *runner.current();
  const AsyncCopy copy{static_cast<std::byte*>(to), static_cast<const std::byte*>(from), live,
                       PlaceOf(site)};
  if (live) runner.OnAccess(Access::kRead, from, 16, copy.place);
  runner.shared().BeginCopy(copy, thread, runner.order());
  thread.open_copies.push_back(copy);
}

void CommitCopies() {
  Thread& thread = *TheRunner().current();
  thread.copy_groups.push_back(std::move(thread.open_copies));
  thread.open_copies.clear();
}

void WaitCopies(int pending_groups) {
  BlockRunner& runner = TheRunner();
  Thread& thread = *runner.current();
  while (std::ssize(thread.copy_groups) > pending_groups) {
    for (const AsyncCopy& copy : thread.copy_groups.front()) runner.shared().LandCopy(copy, thread);
    thread.copy_groups.pop_front();
  }
}

}  // namespace baton::emulation
