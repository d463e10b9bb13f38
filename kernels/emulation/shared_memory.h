#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/emulation/place.h"
#include "kernels/emulation/thread.h"

namespace baton::emulation {

enum class Access : uint8_t { kRead, kWrite, kAtomic };

// The shared memory of the block that runs, and for each byte who wrote it and who read it last.
// Finds accesses outside it, reads of what nobody wrote, races, and whatever touches the
// destination of an asynchronous copy that has not been waited for. It does not depend on the order
// in which threads happened to run. Two readers per byte are remembered; a third that races with a
// later write is missed if both of these are ordered.
class SharedMemory {
 public:
  static constexpr size_t kMaxBytes = 227 << 10;  // More than a block of any GPU may have.

  SharedMemory();
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Off: only the bounds of copies and matrices are looked at.
  void set_detects(bool detects) { detects_ = detects; }

  // For a new block: all bytes 0xff, written by nobody.
  void Reset(size_t bytes);
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

  // Whether an address is meant for shared memory, also if it missed by some hundred KiB.
  bool IsNear(const void* address) const {
    return reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(window_) <
           kWindowBytes;
  }

  void Check(Access access, const void* address, size_t size, Place place, const Thread& thread,
             const BlockOrder& order);
  // An asynchronous copy of 16 bytes begins: until it lands its destination holds 0xff.
  void BeginCopy(const AsyncCopy& copy, const Thread& thread, const BlockOrder& order);
  void LandCopy(const AsyncCopy& copy, const Thread& thread);

  // 16 bytes of a tensor copy. `landed` is the stamp of what it writes: its mbarrier's, so that
  // only who has waited there may touch it.
  void BeginTensorCopy(std::byte* to, Stamp landed, Place place, const Thread& thread,
                       const BlockOrder& order);
  void LandTensorCopy(std::byte* to, const std::byte* content, Stamp landed);
  // A warp's wgmma begins to read 16 bytes, of which `thread` knows who wrote them; gives their
  // number. Until it ends they may not be written.
  uint32_t BeginProductRead(const std::byte* from, Place place, const Thread& thread,
                            const BlockOrder& order);
  // For the warp, by its first lane, which tells the others.
  void EndProductRead(uint32_t chunk, const Thread& thread);

 private:
  static constexpr size_t kWindowBytes = 1 << 20;
  static constexpr size_t kBelow = 256 << 10;
  static constexpr size_t kChunkBytes = 16;
  static constexpr size_t kChunks = kMaxBytes / kChunkBytes;
  static constexpr size_t kRegionBytes = 1024;
  static constexpr int kReadingWarps = 16;  // A block of several warpgroups has no more.

  // What happened to a byte, or to all of an aligned group of 2 to 16, while it was the same: most
  // accesses are of many bytes.
  struct Cell {
    Stamp write;
    Stamp reads[2];
    Place write_place;
    Place read_place;    // Of reads[0].
    uint32_t in_flight;  // The thread that issued the copy, plus 1.
  };

  // What wgmma reads and has read of 16 bytes since they were written.
  struct Chunk {
    uint32_t pending;
    Place place;
    Stamp reads[kReadingWarps];
  };

  size_t OffsetOf(const void* address, size_t size, const char* what, Place place,
                  const Thread& thread) const;
  // Cells of a chunk's first bytes lie together, and so on: what is looked at most is little.
  Cell& CellOf(size_t i) { return cells_[i % kChunkBytes * kChunks + i / kChunkBytes]; }
  const Cell& CellOf(size_t i) const { return const_cast<SharedMemory*>(this)->CellOf(i); }
  // Of how many bytes each cell of [begin, begin + size) is, which is in one chunk: at most `size`.
  size_t CellBytes(size_t begin, size_t size);
  // One cell for the chunk, whose bytes are no longer told apart.
  void Unite(size_t begin) { halvings_[begin / kChunkBytes] = 0; }
  void Read(size_t i, Place place, const Thread& thread, const BlockOrder& order, Stamp mine);
  void Write(size_t i, Place place, const Thread& thread, const BlockOrder& order, Stamp mine);
  // Notes that something there is no longer as in a new block.
  void Touch(size_t begin, size_t size);
  // Before a write of [begin, begin + size).
  void CheckProductReads(size_t begin, size_t size, Place place, const Thread& thread,
                         const BlockOrder& order);
  void FailInFlight(size_t i, const char* verb, Place place, const Thread& thread) const;
  void FailUnfenced(size_t i, const Cell& cell, Place place, const Thread& thread) const;
  void FailRace(size_t i, const char* verb, const char* other_verb, Stamp other, Place other_place,
                Place place, const Thread& thread) const;

  std::byte* window_;
  std::byte* data_;
  size_t bytes_ = 0;
  bool detects_ = true;
  bool has_products_ = false;  // Of the running block.
  // What a new block has to clear: most kernels touch little of their shared memory.
  std::array<bool, kMaxBytes / kRegionBytes> is_touched_ = {};
  std::vector<uint32_t> touched_;  // Those regions.
  // Of each chunk: how often its cell was halved, since accesses told its bytes apart.
  std::array<uint8_t, kChunks> halvings_ = {};
  Cell* cells_;
  Chunk* chunks_;
};

}  // namespace baton::emulation
