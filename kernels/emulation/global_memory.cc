#include "kernels/emulation/global_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <memory>

#include "common/base/check.h"

namespace baton::emulation {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{1} << 21;

void Protect(std::byte* data, size_t bytes, int protection) {
  BATON_CHECK(mprotect(data, bytes, protection) == 0);
}

size_t RoundUp(size_t bytes, size_t page = kPage) { return (bytes + page - 1) / page * page; }

}  // namespace

bool RunningBlock::HasReceived(Stamp other, uint32_t from, const Thread& thread,
                               const BlockOrder& order) const {
  if (other.clock() > released[from][other.thread()]) return false;
  return std::ranges::any_of(acquired, [&](Stamp fence) { return order.IsBefore(fence, thread); });
}

GlobalMemory::GlobalMemory() {
  size_t space = kArenaBytes + kHugePage;
  mapped_ = mmap(nullptr, space, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  BATON_CHECK(mapped_ != MAP_FAILED);
  void* arena = mapped_;
  arena_ = static_cast<std::byte*>(std::align(kHugePage, kArenaBytes, arena, space));
  // Open and Close go through all pages that hold something, for each kernel.
  madvise(arena_, kPinnedBegin, MADV_HUGEPAGE);
}

GlobalMemory::~GlobalMemory() { munmap(mapped_, kArenaBytes + kHugePage); }

size_t GlobalMemory::free(int device) const {
  const size_t others = taken_ + (shared_ == nullptr ? 0 : shared_->OfOthers(device));
  return capacity_ - std::min(capacity_, used_[device] + others);
}

bool GlobalMemory::TakeRoom(size_t bytes, int device) {
  const size_t capacity = capacity_ - std::min(capacity_, taken_);
  const bool room = shared_ != nullptr ? shared_->Take(device, bytes, capacity)
                                       : bytes <= free(device);
  if (room) used_[device] += bytes;
  return room;
}

void GlobalMemory::GiveRoomBack(size_t bytes, int device) {
  used_[device] -= bytes;
  if (shared_ != nullptr) shared_->GiveBack(device, bytes);
}

std::byte* GlobalMemory::Allocate(size_t bytes, int device) {
  const bool pinned = device == kPinned;
  const size_t pages = RoundUp(bytes == 0 ? 1 : bytes);
  size_t& next = pinned ? next_pinned_ : next_;
  const size_t end = pinned ? kArenaBytes : kPinnedBegin;
  if (pages + kPage > end - next) return nullptr;
  if (!pinned && !TakeRoom(bytes, device)) return nullptr;
  std::byte* data = arena_ + next;
  next += pages + kPage;  // A page that nobody may touch lies between two allocations.
  if (pinned || open_ > 0) {
    Protect(data, pages, PROT_READ | PROT_WRITE);
    std::memset(data, 0xff, pages);
  } else {
    Open();
    std::memset(data, 0xff, pages);
    Close();
  }
  allocations_[data] = {.data = data, .bytes = bytes, .number = next_number_++, .device = device};
  return data;
}

bool GlobalMemory::Free(void* pointer, int device) {
  const auto found = allocations_.find(static_cast<std::byte*>(pointer));
  if (found == allocations_.end() || found->second.freed || found->second.device != device) {
    return false;
  }
  Allocation& allocation = found->second;
  allocation.freed = true;
  if (device != kPinned) GiveRoomBack(allocation.bytes, device);
  return true;
}

void GlobalMemory::Release(void* pointer) {
  Allocation& allocation = allocations_.at(static_cast<std::byte*>(pointer));
  allocation.released = true;
  allocation.pages.clear();
  const size_t pages = RoundUp(allocation.bytes == 0 ? 1 : allocation.bytes);
  BATON_CHECK(madvise(allocation.data, pages, MADV_DONTNEED) == 0);
  Protect(allocation.data, pages, PROT_NONE);
  last_found_ = nullptr;
  cuts_.erase(cuts_.lower_bound(allocation.data),
              cuts_.lower_bound(allocation.data + allocation.bytes));
  auto first = allocations_.lower_bound(arena_ + first_);
  while (first != allocations_.end() && first->second.released) ++first;
  const bool none = first == allocations_.end() || first->second.device == kPinned;
  first_ = none ? next_ : static_cast<size_t>(first->first - arena_);
}

void GlobalMemory::Cut(void* pointer, size_t bytes) {
  auto* const data = static_cast<std::byte*>(pointer);
  Allocation& whole = std::prev(allocations_.upper_bound(data))->second;
  BATON_CHECK(!whole.freed && data + bytes <= whole.data + whole.bytes);
  whole.is_cut = true;
  last_found_ = nullptr;
  cuts_[data] = {.data = data, .bytes = bytes, .number = next_number_++, .device = whole.device};
}

void GlobalMemory::ReleaseCut(void* data) {
  const auto cut = cuts_.find(static_cast<std::byte*>(data));
  if (cut == cuts_.end()) return;  // Gone with the whole.
  cut->second.released = true;
  cut->second.pages.clear();
}

const GlobalMemory::Allocation* GlobalMemory::Find(const void* address) const {
  const auto* p = static_cast<const std::byte*>(address);
  if (last_found_ != nullptr && p >= last_found_->data &&
      p < last_found_->data + last_found_->bytes) {
    return last_found_;
  }
  auto next = allocations_.upper_bound(p);
  if (next == allocations_.begin()) return nullptr;
  const Allocation* found = &std::prev(next)->second;
  if (found->is_cut) {
    const auto cut = cuts_.upper_bound(p);
    if (cut == cuts_.begin() || std::prev(cut)->first < found->data) return found;
    found = &std::prev(cut)->second;
  }
  last_found_ = found;
  return found;
}

std::string GlobalMemory::RefusalOf(int device, const void* address) const {
  if (!Contains(address)) return "";
  const Allocation* found = Find(address);
  if (found == nullptr || found->device == kPinned || found->device == device ||
      HasPeer(device, found->device)) {
    return "";
  }
  return "device " + std::to_string(device) + " touches memory of device " +
         std::to_string(found->device) + " without peer access";
}

bool GlobalMemory::IsWithinBounds(const void* address, size_t size) const {
  if (!Contains(address)) return true;
  const Allocation* allocation = Find(address);
  return allocation != nullptr && !allocation->released && !allocation->is_cut &&
         static_cast<const std::byte*>(address) + size <= allocation->data + allocation->bytes;
}

// All of the devices' memory at once: a call for each allocation would cost more than the kernel.
void GlobalMemory::Open() {
  if (open_++ > 0) return;
  opened_ = first_ / kHugePage * kHugePage;
  ProtectDevices(PROT_READ | PROT_WRITE);
}

void GlobalMemory::Close() {
  if (--open_ == 0) ProtectDevices(PROT_NONE);
}

// In whole large pages, without which the system gives none.
void GlobalMemory::ProtectDevices(int protection) {
  const size_t end = RoundUp(next_, kHugePage);
  if (end > opened_) Protect(arena_ + opened_, end - opened_, protection);
}

GlobalMemory::Allocation& GlobalMemory::FindForKernel(Access access, const void* address,
                                                      size_t size, Place place,
                                                      const Thread& thread, int device) {
  const Allocation* found = Find(address);
  const char* verb = access == Access::kRead ? "read" : "write";
  if (found == nullptr || !IsWithinBounds(address, size)) {
    std::string where;
    if (found != nullptr) {
      where = ": allocation " + std::to_string(found->number) + " has " +
              std::to_string(found->bytes) + " B, offset " +
              std::to_string(static_cast<const std::byte*>(address) - found->data) +
              (found->released ? ", and was freed" : "");
    }
    Fail(thread.Name() + ": " + verb + " of " + std::to_string(size) +
         " B outside any allocation at " + Show(place) + where);
  }
  if (const std::string refusal = RefusalOf(device, address); !refusal.empty()) {
    Fail(thread.Name() + ": " + verb + " at " + Show(place) + ": " + refusal);
  }
  if (reinterpret_cast<uintptr_t>(address) % size != 0) {
    Fail(thread.Name() + ": misaligned " + verb + " of " + std::to_string(size) +
         " B of global memory at " + Show(place));
  }
  return const_cast<Allocation&>(*found);
}

size_t GlobalMemory::CellsOfOne(Page& page, size_t begin, size_t end, uint32_t launch) {
  const size_t first = begin / kChunkCells * kChunkCells;
  Chunk& chunk = page.chunks[begin / kChunkCells];
  if (chunk.launch != launch) {
    chunk = {.launch = launch};
    page.CellOf(first) = {};
  }
  const size_t most = size_t{1} << std::countr_zero(begin | end | kChunkCells);
  for (; kChunkCells >> chunk.halvings > most; ++chunk.halvings) {
    const size_t cells = kChunkCells >> chunk.halvings;
    for (size_t i = first; i < first + kChunkCells; i += cells) {
      page.CellOf(i + cells / 2) = page.CellOf(i);
    }
  }
  return kChunkCells >> chunk.halvings;
}

void GlobalMemory::CheckCell(const Allocation& allocation, size_t index, Cell& cell, Access access,
                             Place place, const Thread& thread, const BlockOrder& order,
                             const RunningBlock& running) {
  const bool atomic = access == Access::kAtomic;
  const auto conflicts = [&](Stamp other, uint32_t block) {
    if (!other || (atomic && other.atomic())) return false;
    if (block == running.block) return !order.IsBefore(other, thread);
    return !running.HasReceived(other, block, thread, order);
  };
  const auto fail = [&](const char* other_verb, Stamp other, uint32_t block, Place other_place) {
    const bool within = block == running.block;
    Fail((within ? "race: " : "race between blocks: ") + thread.Name() +
         (access == Access::kRead ? " reads" : " writes") + " allocation " +
         std::to_string(allocation.number) + " offset " + std::to_string(2 * index) + " at " +
         Show(place) + ", " + other_verb + " by " + NameOfThread(other.thread()) +
         (within ? "" : " of block " + std::to_string(block)) + " at " + Show(other_place));
  };
  if (conflicts(cell.write, cell.write_block)) {
    fail("written", cell.write, cell.write_block, cell.write_place);
  }
  const Stamp mine = Stamp::Of(thread.index, thread.clock, atomic);
  if (access == Access::kRead) {
    const int slot = !cell.reads[0] || cell.read_blocks[0] == running.block ? 0 : 1;
    cell.reads[slot] = mine;
    cell.read_blocks[slot] = running.block;
    cell.read_place = place;
    return;
  }
  for (int i = 0; i < 2; ++i) {
    if (conflicts(cell.reads[i], cell.read_blocks[i])) {
      fail("read", cell.reads[i], cell.read_blocks[i], cell.read_place);
    }
  }
  cell.write = mine;
  cell.write_block = running.block;
  cell.write_place = place;
}

void GlobalMemory::Check(Access access, const void* address, size_t size, Place place,
                         const Thread& thread, const BlockOrder& order,
                         const RunningBlock& running) {
  Allocation& allocation =
      FindForKernel(access, address, size, place, thread, running.device);
  if (size == 1) return;
  if (access != Access::kRead) allocation.written = true;
  if (!allocation.written && allocation.bytes > kLargeBytes) return;
  if (allocation.pages.empty()) allocation.pages.resize(allocation.bytes / 2 / kCellsPerPage + 1);
  const auto offset = static_cast<size_t>(static_cast<const std::byte*>(address) - allocation.data);
  size_t end = 0;
  for (size_t begin = offset / 2; begin < (offset + size) / 2; begin = end) {
    end = std::min((offset + size) / 2, (begin / kChunkCells + 1) * kChunkCells);
    auto& page = allocation.pages[begin / kCellsPerPage];
    if (page == nullptr) page = std::make_unique<Page>();
    const size_t first = begin % kCellsPerPage, last = first + (end - begin);
    const size_t step = CellsOfOne(*page, first, last, running.launch);
    for (size_t i = first; i < last; i += step) {
      Cell& cell = page->CellOf(i);
      // Most cells are read often and never written.
      if (access == Access::kRead && !cell.write && cell.reads[0] &&
          cell.read_blocks[0] == running.block) {
        cell.reads[0] = Stamp::Of(thread.index, thread.clock, false);
        cell.read_place = place;
        continue;
      }
      CheckCell(allocation, begin + (i - first), cell, access, place, thread, order, running);
    }
  }
}

}  // namespace baton::emulation
