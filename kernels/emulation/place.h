#pragma once

#include <cstdint>
#include <source_location>
#include <string>

namespace baton::emulation {

using Site = std::source_location;

// A line of kernel source in 32 bits: a return address within the program, or a Site that was met.
using Place = uint32_t;
Place PlaceOf(const void* return_address);
Place PlaceOf(const Site& site);
std::string Show(Place place);  // "norms.cu:41"
std::string Show(const Site& site);
bool IsSame(const Site& a, const Site& b);

// Whether an address lies in the program itself: its constants are there.
bool IsInProgram(const void* address);

}  // namespace baton::emulation
