#include "router/generation/seed_source.h"

#include <random>

namespace baton {

uint64_t RandomSeed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace baton
