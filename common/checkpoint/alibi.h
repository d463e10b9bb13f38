#pragma once

#include <cstdint>
#include <vector>

namespace baton {

// By how much a head's scores fall for each token of distance (Press et al. 2021, arXiv 2108.12409;
// the form of BLOOM for any number of heads): of a power of two n a geometric sequence from
// 2^(-8/n); further heads take every other of the sequence for 2n. [num_heads]
std::vector<float> AlibiSlopes(int32_t num_heads);

}  // namespace baton
