#include "kernels/emulation/place.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <cstdio>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

// Of the linker.
extern "C" char __executable_start, _end;  // NOLINT

namespace baton::emulation {
namespace {

struct Sites {
  std::vector<Site> all;
  std::map<std::pair<const char*, uint64_t>, Place> index;
};
Sites& KnownSites() {
  static auto* sites = new Sites;
  return *sites;
}

std::string BaseName(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

}  // namespace

Place PlaceOf(const void* return_address) {
  return static_cast<Place>(static_cast<const char*>(return_address) - &__executable_start) << 1;
}

Place PlaceOf(const Site& site) {
  // Calls come from few sites, and most are asked for again and again.
  static_assert(sizeof(Site) == sizeof(void*));
  const void* const identity = std::bit_cast<const void*>(site);
  static thread_local std::array<std::pair<const void*, Place>, 256> recent;
  auto& [known, known_place] = recent[reinterpret_cast<uintptr_t>(identity) / 8 % recent.size()];
  if (known == identity) return known_place;
  Sites& sites = KnownSites();
  const std::pair key(site.file_name(), uint64_t{site.line()} << 32 | site.column());
  const auto [it, is_new] = sites.index.try_emplace(key, static_cast<Place>(sites.all.size()));
  if (is_new) sites.all.push_back(site);
  known = identity;
  known_place = it->second << 1 | 1;
  return known_place;
}

std::string Show(const Site& site) {
  return BaseName(site.file_name()) + ":" + std::to_string(site.line());
}

std::string Show(Place place) {
  if (place & 1) return Show(KnownSites().all[place >> 1]);
  // Only for a message: the call stands before the address to which it returns.
  char command[128];
  std::snprintf(command, sizeof(command), "addr2line -e /proc/%d/exe 0x%x",
                static_cast<int>(getpid()), (place >> 1) - 1);
  char line[512] = "?";
  if (FILE* pipe = popen(command, "r"); pipe != nullptr) {
    if (std::fgets(line, sizeof(line), pipe) == nullptr) line[0] = 0;
    pclose(pipe);
  }
  const std::string name = BaseName(line);
  return name.substr(0, name.find_first_of(" \n"));
}

bool IsSame(const Site& a, const Site& b) {
  if (std::bit_cast<const void*>(a) == std::bit_cast<const void*>(b)) return true;
  return a.line() == b.line() && a.column() == b.column() &&
         std::strcmp(a.file_name(), b.file_name()) == 0;
}

bool IsInProgram(const void* address) {
  return address >= &__executable_start && address < &_end;
}

}  // namespace baton::emulation
