#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/emulation/options.h"
#include "kernels/emulation/shared_memory.h"
#include "kernels/emulation/shared_use.h"
#include "kernels/emulation/thread.h"

namespace baton::emulation {

// The block that runs, for what blocks do to each other in global memory.
struct RunningBlock {
  int device = 0;
  uint32_t launch = 0;  // Counts kernels.
  uint32_t block = 0;   // Within its grid.
  // To hand data over, a thread of one block that knows of it performs __threadfence and then an
  // atomic, one of the other block an atomic and then __threadfence, behind which the data are
  // read. By block, the clocks of its threads that were handed over; and where the running block
  // has received, once for each thread.
  std::vector<ActorClocks> released;
  std::vector<Stamp> acquired;

  bool HasReceived(Stamp other, uint32_t from, const Thread& thread, const BlockOrder& order) const;
};

// Memory of the devices, an address range that only kernels and copies may touch (the host gets a
// fault), and pinned host memory, another. Addresses are never used twice, and canary pages lie
// between allocations. Per two bytes: who wrote and who read last in the running kernel, for races
// between blocks and between threads of a block. An access of one byte is checked for its bounds
// only, and of large memory that no kernel has written, such as weights, reads are not remembered.
class GlobalMemory {
 public:
  GlobalMemory();
  ~GlobalMemory();
  GlobalMemory(const GlobalMemory&) = delete;
  GlobalMemory& operator=(const GlobalMemory&) = delete;

  // Of a device, or pinned, which is no device's. Null: there is no room.
  std::byte* Allocate(size_t bytes, int device);
  std::byte* AllocatePinned(size_t bytes) { return Allocate(bytes, kPinned); }
  // Its room may be given out anew; what is there stays until Release. False: it was never given
  // out, or is free.
  bool Free(void* pointer, int device);
  bool FreePinned(void* pointer) { return Free(pointer, kPinned); }
  void Release(void* pointer);
  // Part of an allocation is one of its own from now on, and what is in no such part out of reach.
  void Cut(void* data, size_t bytes);
  void ReleaseCut(void* data);
  // Room of each device that somebody else has.
  void Take(size_t bytes) { taken_ = bytes; }
  // The other processes that name this file have the same devices. Before the first allocation.
  void ShareWith(const std::string& file) { shared_ = std::make_unique<SharedUse>(file); }
  void set_capacity(size_t bytes) { capacity_ = bytes; }
  size_t capacity() const { return capacity_; }  // Of each device.
  size_t free(int device) const;
  int64_t num_allocations() const { return static_cast<int64_t>(allocations_.size()); }  // Ever.
  // The host may touch device memory from now on. Before the first allocation.
  void Unprotect() { ++open_; }

  bool Contains(const void* address) const {
    return static_cast<size_t>(static_cast<const std::byte*>(address) - arena_) < kArenaBytes;
  }
  // Work of a device touches another's memory only with peer access.
  void EnablePeer(int device, int peer) { peers_[device].set(peer); }
  bool HasPeer(int device, int peer) const { return peers_[device][peer]; }
  void ForgetPeers() { peers_ = {}; }
  // Empty, or whose memory it is that the device must not touch.
  std::string RefusalOf(int device, const void* address) const;
  // Whether [address, address + size) is in one allocation. Addresses of the host are.
  bool IsWithinBounds(const void* address, size_t size) const;

  // The host may touch device memory between Open and Close.
  void Open();
  void Close();

  void Check(Access access, const void* address, size_t size, Place place, const Thread& thread,
             const BlockOrder& order, const RunningBlock& running);

 private:
  static constexpr size_t kArenaBytes = size_t{1} << 40;
  static constexpr int kPinned = -1;  // In place of a device.
  // The first half is the devices'.
  static constexpr size_t kPinnedBegin = kArenaBytes / 2;
  static constexpr size_t kChunkCells = 8, kPageChunks = 256;
  static constexpr size_t kCellsPerPage = kChunkCells * kPageChunks;
  static constexpr size_t kLargeBytes = size_t{1} << 20;

  // What happened to two bytes in the running kernel, or to all of an aligned group of them while
  // it was the same.
  struct Cell {
    uint32_t write_block = 0;
    uint32_t read_blocks[2] = {};  // Different ones, if both reads are set.
    Stamp write;
    Stamp reads[2];
    Place write_place = 0;
    Place read_place = 0;
  };
  struct Chunk {
    uint32_t launch = 0;    // Of its cells; another kernel's are forgotten.
    uint32_t halvings = 0;  // How often its cell was halved, since accesses told its bytes apart.
  };
  struct Page {
    Chunk chunks[kPageChunks];
    // Those of the chunks' first bytes lie together, and so on: what is looked at most is little.
    Cell cells[kCellsPerPage];

    Cell& CellOf(size_t i) { return cells[i % kChunkCells * kPageChunks + i / kChunkCells]; }
  };
  struct Allocation {
    std::byte* data;
    size_t bytes;
    int number;
    int device;  // Or kPinned.
    bool freed = false;
    bool released = false;
    bool written = false;  // By a kernel.
    bool is_cut = false;   // All that may be touched are parts.
    std::vector<std::unique_ptr<Page>> pages = {};  // Made when they are touched.
  };

  // Whether a device has room for so much more, which is counted then.
  bool TakeRoom(size_t bytes, int device);
  void GiveRoomBack(size_t bytes, int device);
  void ProtectDevices(int protection);
  const Allocation* Find(const void* address) const;
  Allocation& FindForKernel(Access access, const void* address, size_t size, Place place,
                            const Thread& thread, int device);
  // Of how many cells each one is of [begin, end) in a page, which is within a chunk.
  static size_t CellsOfOne(Page& page, size_t begin, size_t end, uint32_t launch);
  void CheckCell(const Allocation& allocation, size_t index, Cell& cell, Access access, Place place,
                 const Thread& thread, const BlockOrder& order, const RunningBlock& running);

  void* mapped_;
  std::byte* arena_;  // Within it, where large pages begin.
  size_t first_ = 0;  // Offset of the first allocation of a device that was not freed.
  size_t opened_ = 0;  // Where Open began.
  size_t next_ = 0;   // Of the next...
  size_t next_pinned_ = kPinnedBegin;  // ... and of the next of pinned memory.
  size_t capacity_ = size_t{8} << 30;
  std::array<size_t, kMostDevices> used_ = {};  // By this process.
  size_t taken_ = 0;                             // Of each device, by nobody that is there.
  std::unique_ptr<SharedUse> shared_;
  std::array<std::bitset<kMostDevices>, kMostDevices> peers_;
  int open_ = 0;
  int next_number_ = 0;
  std::map<const std::byte*, Allocation> allocations_;
  std::map<const std::byte*, Allocation> cuts_;
  mutable const Allocation* last_found_ = nullptr;
};

}  // namespace baton::emulation
