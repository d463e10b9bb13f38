#include "kernels/emulation/shared_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "common/base/check.h"

namespace baton::emulation {
namespace {

std::string NameOfByte(size_t i) { return "shared byte " + std::to_string(i); }

std::byte* Map(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  BATON_CHECK(memory != MAP_FAILED);
  return static_cast<std::byte*>(memory);
}

}  // namespace

SharedMemory::SharedMemory()
    : window_(Map(kWindowBytes)),
      data_(window_ + kBelow),
      cells_(reinterpret_cast<Cell*>(Map(kMaxBytes * sizeof(Cell)))),
      chunks_(reinterpret_cast<Chunk*>(Map(kMaxBytes / kChunkBytes * sizeof(Chunk)))) {
  std::memset(data_, 0xff, kMaxBytes);
}

SharedMemory::~SharedMemory() {
  munmap(window_, kWindowBytes);
  munmap(cells_, kMaxBytes * sizeof(Cell));
  munmap(chunks_, kMaxBytes / kChunkBytes * sizeof(Chunk));
}

void SharedMemory::Reset(size_t bytes) {
  bytes_ = bytes;
  if (!detects_) {
    std::memset(data_, 0xff, bytes);
    return;
  }
  constexpr size_t kRegionChunks = kRegionBytes / kChunkBytes;
  for (const uint32_t region : touched_) {
    std::memset(data_ + region * kRegionBytes, 0xff, kRegionBytes);
    const size_t first = region * kRegionChunks;
    std::fill_n(cells_ + first, kRegionChunks, Cell{});
    std::fill_n(halvings_.begin() + first, kRegionChunks, 0);
    if (has_products_) std::fill_n(chunks_ + first, kRegionChunks, Chunk{});
    is_touched_[region] = false;
  }
  touched_.clear();
  has_products_ = false;
}

void SharedMemory::Touch(size_t begin, size_t size) {
  for (size_t i = begin / kRegionBytes; i <= (begin + size - 1) / kRegionBytes; ++i) {
    if (is_touched_[i]) continue;
    is_touched_[i] = true;
    touched_.push_back(static_cast<uint32_t>(i));
  }
}

size_t SharedMemory::CellBytes(size_t begin, size_t size) {
  uint8_t& halvings = halvings_[begin / kChunkBytes];
  for (; kChunkBytes >> halvings > size; ++halvings) {
    const size_t bytes = kChunkBytes >> halvings, first = begin / kChunkBytes * kChunkBytes;
    for (size_t i = first; i < first + kChunkBytes; i += bytes) CellOf(i + bytes / 2) = CellOf(i);
  }
  return kChunkBytes >> halvings;
}

size_t SharedMemory::OffsetOf(const void* address, size_t size, const char* what, Place place,
                              const Thread& thread) const {
  const auto offset = static_cast<const std::byte*>(address) - data_;
  if (offset < 0 || static_cast<size_t>(offset) + size > bytes_) {
    Fail(thread.Name() + ": " + what + " of " + std::to_string(size) +
         " B outside shared memory at " + Show(place) + ": offset " + std::to_string(offset) +
         " of " + std::to_string(bytes_));
  }
  if (offset % size != 0) {
    Fail(thread.Name() + ": misaligned " + what + " of " + std::to_string(size) +
         " B of shared memory at " + Show(place) + ": offset " + std::to_string(offset));
  }
  return static_cast<size_t>(offset);
}

void SharedMemory::FailInFlight(size_t i, const char* verb, Place place,
                                const Thread& thread) const {
  Fail(thread.Name() + " " + verb + " " + NameOfByte(i) + " at " + Show(place) +
       " while an asynchronous copy into it is in flight, issued by " +
       NameOfThread(static_cast<int>(CellOf(i).in_flight) - 1) + " at " +
       Show(CellOf(i).write_place) + " and not waited for");
}

void SharedMemory::FailRace(size_t i, const char* verb, const char* other_verb, Stamp other,
                            Place other_place, Place place, const Thread& thread) const {
  Fail("race: " + thread.Name() + " " + verb + " " + NameOfByte(i) + " at " + Show(place) + ", " +
       other_verb + " by " + NameOfThread(other.thread()) + " at " + Show(other_place) +
       " with no barrier between");
}

void SharedMemory::Read(size_t i, Place place, const Thread& thread, const BlockOrder& order,
                        Stamp mine) {
  Cell& cell = CellOf(i);
  if (cell.in_flight != 0) FailInFlight(i, "reads", place, thread);
  if (!cell.write) {
    Fail(thread.Name() + " reads uninitialised " + NameOfByte(i) + " at " + Show(place));
  }
  if (!order.IsBefore(cell.write, thread) && !(mine.atomic() && cell.write.atomic())) {
    FailRace(i, "reads", "written", cell.write, cell.write_place, place, thread);
  }
  if (cell.reads[0] == mine) return;
  if (cell.reads[0].thread() != thread.index) cell.reads[1] = cell.reads[0];
  cell.reads[0] = mine;
  cell.read_place = place;
}

void SharedMemory::Write(size_t i, Place place, const Thread& thread, const BlockOrder& order,
                         Stamp mine) {
  Cell& cell = CellOf(i);
  if (cell.in_flight != 0) FailInFlight(i, "writes", place, thread);
  if (cell.write && !order.IsBefore(cell.write, thread) &&
      !(mine.atomic() && cell.write.atomic())) {
    FailRace(i, "writes", "written", cell.write, cell.write_place, place, thread);
  }
  for (const Stamp read : cell.reads) {
    if (read && !order.IsBefore(read, thread) && !(mine.atomic() && read.atomic())) {
      FailRace(i, "writes", "read", read, cell.read_place, place, thread);
    }
  }
  cell = {.write = mine, .write_place = place};
}

void SharedMemory::Check(Access access, const void* address, size_t size, Place place,
                         const Thread& thread, const BlockOrder& order) {
  const size_t begin =
      OffsetOf(address, size, access == Access::kRead ? "read" : "write", place, thread);
  if (!detects_) return;
  Touch(begin, size);
  if (access != Access::kRead) CheckProductReads(begin, size, place, thread, order);
  const Stamp mine = Stamp::Of(thread.index, thread.clock, access == Access::kAtomic);
  const size_t step = CellBytes(begin, size);
  for (size_t i = begin; i < begin + size; i += step) {
    if (access != Access::kWrite) Read(i, place, thread, order, mine);
    if (access != Access::kRead) Write(i, place, thread, order, mine);
  }
  if (access != Access::kRead && size == kChunkBytes) Unite(begin);
}

void SharedMemory::BeginCopy(const AsyncCopy& copy, const Thread& thread,
                             const BlockOrder& order) {
  const size_t begin = OffsetOf(copy.to, 16, "cp.async", copy.place, thread);
  std::memset(copy.to, 0xff, 16);
  if (!detects_) return;
  Touch(begin, 16);
  CheckProductReads(begin, 16, copy.place, thread, order);
  const Stamp mine = Stamp::Of(thread.index, thread.clock, false);
  const size_t step = CellBytes(begin, kChunkBytes);
  for (size_t i = begin; i < begin + kChunkBytes; i += step) {
    Write(i, copy.place, thread, order, mine);
  }
  Unite(begin);
  CellOf(begin).in_flight = static_cast<uint32_t>(thread.index) + 1;
}

void SharedMemory::LandCopy(const AsyncCopy& copy, const Thread& thread) {
  if (copy.live) {
    std::memcpy(copy.to, copy.from, 16);
  } else {
    std::memset(copy.to, 0, 16);
  }
  if (!detects_) return;
  const auto begin = static_cast<size_t>(copy.to - data_);
  CellOf(begin) = {.write = Stamp::Of(thread.index, thread.clock, false),
                   .write_place = copy.place};
}

void SharedMemory::CheckProductReads(size_t begin, size_t size, Place place, const Thread& thread,
                                     const BlockOrder& order) {
  if (!has_products_) return;
  for (size_t i = begin / kChunkBytes; i <= (begin + size - 1) / kChunkBytes; ++i) {
    Chunk& chunk = chunks_[i];
    if (chunk.pending > 0) {
      Fail(thread.Name() + " writes " + NameOfByte(i * kChunkBytes) + " at " + Show(place) +
           " while a wgmma reads it, issued at " + Show(chunk.place) + " and not waited for");
    }
    for (const Stamp read : chunk.reads) {
      if (!read || order.IsBefore(read, thread)) continue;
      FailRace(i * kChunkBytes, "writes", "read", read, chunk.place, place, thread);
    }
    chunk = {};
  }
}

void SharedMemory::BeginTensorCopy(std::byte* to, Stamp landed, Place place, const Thread& thread,
                                   const BlockOrder& order) {
  const size_t begin = OffsetOf(to, kChunkBytes, "tensor copy", place, thread);
  std::memset(to, 0xff, kChunkBytes);
  if (!detects_) return;
  Touch(begin, kChunkBytes);
  CheckProductReads(begin, kChunkBytes, place, thread, order);
  const size_t step = CellBytes(begin, kChunkBytes);
  for (size_t i = begin; i < begin + kChunkBytes; i += step) {
    const Cell before = CellOf(i);
    Write(i, place, thread, order, landed);
    if (before.write && !order.IsFenced(before.write)) FailUnfenced(i, before, place, thread);
  }
  Unite(begin);
  CellOf(begin).in_flight = static_cast<uint32_t>(thread.index) + 1;
}

void SharedMemory::LandTensorCopy(std::byte* to, const std::byte* content, Stamp landed) {
  std::memcpy(to, content, kChunkBytes);
  if (!detects_) return;
  const auto begin = static_cast<size_t>(to - data_);
  CellOf(begin).write = landed;
  CellOf(begin).in_flight = 0;
}

uint32_t SharedMemory::BeginProductRead(const std::byte* from, Place place, const Thread& thread,
                                        const BlockOrder& order) {
  const size_t begin = OffsetOf(from, kChunkBytes, "wgmma's read", place, thread);
  const auto number = static_cast<uint32_t>(begin / kChunkBytes);
  if (!detects_) return number;
  has_products_ = true;
  const size_t step = CellBytes(begin, kChunkBytes);
  for (size_t i = begin; i < begin + kChunkBytes; i += step) {
    const Cell& cell = CellOf(i);
    if (cell.in_flight != 0) FailInFlight(i, "reads", place, thread);
    if (!cell.write) {
      Fail(thread.Name() + " reads uninitialised " + NameOfByte(i) + " at " + Show(place));
    }
    if (!order.IsBefore(cell.write, thread)) {
      FailRace(i, "reads", "written", cell.write, cell.write_place, place, thread);
    }
    if (!order.IsFenced(cell.write)) FailUnfenced(i, cell, place, thread);
  }
  ++chunks_[number].pending;
  chunks_[number].place = place;
  return number;
}

void SharedMemory::EndProductRead(uint32_t chunk, const Thread& thread) {
  if (!detects_) return;
  --chunks_[chunk].pending;
  chunks_[chunk].reads[thread.warp() % kReadingWarps] =
      Stamp::Of(thread.index, thread.clock, false);
}

void SharedMemory::FailUnfenced(size_t i, const Cell& cell, Place place,
                                const Thread& thread) const {
  Fail(thread.Name() + " lets a wgmma or a tensor copy touch " + NameOfByte(i) + " at " +
       Show(place) + ", written by " + NameOfThread(cell.write.thread()) + " at " +
       Show(cell.write_place) + " with no fence.proxy.async behind it");
}

}  // namespace baton::emulation
